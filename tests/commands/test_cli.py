"""The command line, through real processes."""

from __future__ import annotations

import json

import jax
import pytest
from child import run, run_code
from conftest import LAYOUT_OFF

import jaxmarshal
from jaxmarshal import fronts
from jaxmarshal._jax import patching, private
from jaxmarshal._reports import counting
from jaxmarshal.fronts import filtered

pytestmark = pytest.mark.commands

ENTRIES = sorted(entry.name for entry in patching.ENTRY_POINTS)


def doctor(*arguments, **environment):
    return run("-m", "jaxmarshal", "doctor", *arguments, **environment)


def test_doctor():
    """The text names versions, backend, where each word was found, and every entry point."""
    done = doctor()
    assert (done.returncode, done.stderr) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line[:1] == " ")
    assert lines["jaxmarshal"] == jaxmarshal.__version__
    assert lines["jax"] == jax.__version__
    assert lines["backend"] == "cpu, 8 local device(s)"
    where = "public attribute" if LAYOUT_OFF else "byte "
    for word in ("aval", "dtype", "sharding", "committed", "buffer"):
        assert lines[word].startswith(where)
    for word in ("data_layout", "data"):
        assert LAYOUT_OFF or lines[word].endswith("of the runtime buffer")
    for entry in ENTRIES:
        assert lines[entry] == "active, not installed"


def test_doctor_json():
    """`--json` prints the same facts for other programs."""
    done = doctor("--json", JAXMARSHAL="off", JAXMARSHAL_OBJECT_LAYOUT="off")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["versions"]["jax"] == jax.__version__
    assert facts["environment"] == {"JAXMARSHAL": "off", "JAXMARSHAL_OBJECT_LAYOUT": "off"}
    assert facts["not_supported"] is None
    assert facts["missing_names"] == {}
    assert facts["entry_points"] == {
        entry: {"active": True, "installed": False, "lacks": []} for entry in ENTRIES
    }
    assert facts["switched_off"] is True
    assert all(counts["hits"] == 0 for counts in facts["stats"].values())
    assert facts["object_layout"]["aval"] is None
    assert facts["object_layout"]["notes"] == ["switched off by JAXMARSHAL_OBJECT_LAYOUT"]


def test_doctor_with_the_switch():
    """JAXMARSHAL=off is said at the top and at every entry point."""
    done = doctor(JAXMARSHAL="off")
    assert done.returncode == 0
    assert "switched off\n  JAXMARSHAL is off in the environment" in done.stdout
    assert done.stdout.count("active, not installed (JAXMARSHAL=off)\n") == len(ENTRIES)


def test_doctor_shows_counts(capsys):
    """Within a program the report has what was counted, and what the reasons mean."""
    from jaxmarshal.__main__ import main

    jaxmarshal.device_put(1.0)
    jaxmarshal.device_put(1.0)
    jaxmarshal.device_put(1.0, donate=True)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("calls in this process")
    assert lines[start + 1].split(maxsplit=1) == [
        "device_put", "1 hits, 2 misses, 1 not_recorded, 1 options"
    ]  # fmt: skip
    explained = [line.partition(":")[0].strip() for line in lines[start + 2 :]]
    assert explained == ["not_recorded", "options"]


def test_doctor_without_a_backend():
    """A backend that cannot start is reported, with exit status 1 and no traceback."""
    done = doctor(JAX_PLATFORMS="nonsense")
    assert done.returncode == 1
    assert "failed: " in done.stdout
    assert "nonsense" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("version", ["0.7.2", "0.13.0"])
def test_an_unsupported_version(version):
    """Doctor says so and exits with 1; everything works as in JAX, and nothing is patched."""
    done = run_code(
        f"""
        import jax
        jax.__version__ = {version!r}
        original = jax.device_put
        import jaxmarshal
        from jaxmarshal.__main__ import main

        assert main(["doctor"]) == 1
        jaxmarshal.install()
        assert jax.device_put is original
        assert jaxmarshal.device_put([1.0])[0] == 1
        assert jaxmarshal.dispatch.batched_device_put_impl is (
            jax._src.dispatch.batched_device_put_impl
        )
        print(jaxmarshal.stats()["device_put"]["misses_by_reason"])
        """
    )
    text = f"JAX {version} is outside the supported range >=0.8,<0.13"
    assert f"not supported\n  {text}\n" in done.stdout
    assert done.stdout.count(f"inactive: {text}") == len(ENTRIES)
    assert done.stdout.endswith("{'unsupported': 1}\n")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0.10.2", (0, 10, 2)),
        ("0.12.0.1", (0, 12, 0, 1)),
        ("0.11.0.dev20260101", (0, 11, 0)),
        ("0.12.0rc1", (0, 12, 0)),
        ("0.10.2+cuda", (0, 10, 2)),
        ("", ()),
    ],
)
def test_versions_are_read(text, numbers):
    """Leading numbers count; suffixes of development versions do not."""
    assert private.version_tuple(text) == numbers


@pytest.mark.parametrize("arguments", [["--help"], ["doctor", "--help"]], ids=" ".join)
def test_help(arguments):
    """Help goes to the standard output."""
    done = run("-m", "jaxmarshal", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: jaxmarshal")
    assert "doctor" in done.stdout


def test_version():
    """The version is the package's."""
    done = run("-m", "jaxmarshal", "--version")
    assert (done.returncode, done.stdout) == (0, f"jaxmarshal {jaxmarshal.__version__}\n")


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["doctor", "--nonsense"], ["doctor", "more"]], ids=" ".join
)
def test_bad_arguments(arguments, capsys):
    """Exit status 2, usage on the error output, nothing on the standard output."""
    from jaxmarshal.__main__ import main

    with pytest.raises(SystemExit) as caught:
        main(arguments)
    output = capsys.readouterr()
    assert caught.value.code == 2
    assert output.err.startswith("usage: jaxmarshal")
    assert output.out == ""


def test_bad_arguments_of_a_process():
    """The same through a process."""
    done = run("-m", "jaxmarshal", "nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nonsense" in done.stderr


def test_every_entry_point_is_counted():
    """What `install` patches is what `stats` counts, and calls of `jaxmarshal.filter_jit`."""
    counted = [name for name in counting.snapshot() if not name.startswith("dispatch_v0_3.")]
    names = [*ENTRIES, *(front.name for front in fronts.FRONTS), filtered.NAME]
    assert sorted(counted) == sorted(names)
