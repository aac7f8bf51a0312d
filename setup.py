"""Builds the C extensions of jaxmarshal; everything else is in pyproject.toml.

Environment:
    JAXMARSHAL_BUILD   release (default), debug (checks and live-object counters on) or asan
                       (debug, plus the address and undefined-behaviour sanitizers, and calls that
                       tell which code was reached; see `make asan` for what that has to load).
    JAXMARSHAL_WERROR  1: a compiler warning is an error.
    SOURCE_DATE_EPOCH  seconds since 1970: the time that every file in an archive gets. The same
                       sources and tools then make the same archives, byte for byte.
"""

import gzip
import multiprocessing
import os
import re
import shutil
import sys
import sysconfig
import tarfile
from glob import glob

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

#: Modules most of whose code runs when something is seen for the first time, or where a call does
#: much else: compiled for size, as a wheel may not be larger than `.ci/check_dist.py` says.
FOR_SIZE = {
    f"jaxmarshal.{name}"
    for name in (
        "_core.entries.all_jitted", "_core.entries.jit_probe", "_core.entries.jit_recorder",
        "_core.entries.process_data", "_core.entries.reshard", "_core.entries.v0_3",
        "_core.entries.watch", "_core.plans.host_leaves", "_core.plans.jit_plans",
        "_core.plans.make", "_core.plans.make_filtered", "_core.plans.probe",
        "_core.replay.recording", "_core.values.array_words", "_reports.counting",
    )
}  # fmt: skip

HEADERS = sorted(glob("include/jaxmarshal/*.h"))

SANITIZE = "-fsanitize=address,undefined"
# Symbols that only debuggers read; what the loader needs stays.
STRIP = "-Wl,-x" if sys.platform == "darwin" else "-Wl,-s"
FLAVOURS = {
    # name: (compiler flags, linker flags)
    "release": (["-O2", "-fno-plt", "-DNDEBUG", "-g0"], [STRIP]),
    "debug": (["-O1", "-g", "-UNDEBUG", "-DJAXMARSHAL_DEBUG=1"], []),
    "asan": (
        [
            SANITIZE, "-fsanitize-coverage=trace-pc", "-fno-omit-frame-pointer", "-O1", "-g",
            "-UNDEBUG", "-DJAXMARSHAL_DEBUG=1",
        ],
        [SANITIZE],
    ),
}

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise SystemExit(
        "jaxmarshal relies on the GIL for the consistency of its caches: it cannot be built for a "
        "free-threaded Python. Use a build of Python with the GIL"
    )

FLAVOUR = os.environ.get("JAXMARSHAL_BUILD") or "release"
if FLAVOUR not in FLAVOURS:
    raise SystemExit(f"JAXMARSHAL_BUILD={FLAVOUR!r}: expected one of {', '.join(FLAVOURS)}")
compile_args, link_args = FLAVOURS[FLAVOUR]

WARNINGS = ["-Wall", "-Wextra"]
if os.environ.get("JAXMARSHAL_WERROR", "0") not in ("", "0"):
    WARNINGS.append("-Werror")


def extensions():
    """One extension per .pyx and .c file of the package, cythonized below build/."""
    modules = [
        Extension(
            os.path.splitext(os.path.relpath(source, "marshal"))[0].replace(os.sep, "."),
            [source],
            include_dirs=["include", numpy.get_include()],
            define_macros=[
                ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"),
                ("NPY_TARGET_VERSION", "NPY_2_0_API_VERSION"),
            ],
            extra_compile_args=WARNINGS + compile_args,
            extra_link_args=link_args,
            # Headers include each other; .pxd files are followed by cythonize itself.
            depends=HEADERS,
        )
        for suffix in ("c", "pyx")
        for source in sorted(glob(f"marshal/jaxmarshal/_*/**/*.{suffix}", recursive=True))
    ]
    # cythonize's workers import this file again unless they are forked.
    forks = multiprocessing.get_start_method() == "fork"
    modules = cythonize(
        modules,
        # NumPy's declarations are compiled in, and differ from one NumPy to the next.
        build_dir=os.path.join("build", "cython", f"numpy-{numpy.__version__}"),
        include_path=["marshal"],
        nthreads=2 if forks else 0,
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "embedsignature": False,
            "binding": True,
            "autotestdict": False,
            "auto_pickle": False,    # nothing of the core is pickled by what Cython writes
            "freethreading_compatible": False,
        },
    )
    if missing := FOR_SIZE - {module.name for module in modules}:
        raise SystemExit(f"FOR_SIZE in setup.py: there is no {', '.join(sorted(missing))}")
    for module in modules:
        if FLAVOUR == "release" and module.name in FOR_SIZE:
            module.extra_compile_args.append("-Os")    # the last -O counts
        # cythonize adds NumPy's headers by their place in this build environment.
        module.depends = [path for path in module.depends if not os.path.isabs(path)]
        for source in module.sources:
            name_sources_alike(source)
    return modules


def name_sources_alike(path):
    """Name declarations of other packages in a C file as those packages do, wherever they lie.

    Tracebacks show these names. pip and build have an environment of another name each time.
    """
    with open(path, encoding="utf-8") as file:
        text = file.read()
    named = re.sub(r'^  ".*/site-packages/(.*\.p(?:yx|xd)",)$', r'  "\1', text, flags=re.MULTILINE)
    if named != text:
        with open(path, "w", encoding="utf-8") as file:
            file.write(named)


class Build(build):
    """Keeps the outputs of the flavours apart: what one has compiled is no use to another."""

    def initialize_options(self):
        super().initialize_options()
        self.build_base = os.path.join("build", FLAVOUR)


class BuildPy(build_py):
    """Starts from an empty folder, and adds the C headers to what is installed."""

    def run(self):
        if not self.editable_mode:
            # Otherwise a module that was deleted or renamed lives on in the next wheel.
            shutil.rmtree(os.path.join(self.build_lib, "jaxmarshal"), ignore_errors=True)
        super().run()
        if not self.editable_mode:
            for source, target in self._headers().items():
                self.mkpath(os.path.dirname(target))
                self.copy_file(source, target)

    def _headers(self):
        return {path: os.path.join(self.build_lib, "jaxmarshal", path) for path in HEADERS}

    def get_outputs(self, include_bytecode=True):
        return super().get_outputs(include_bytecode) + list(self._headers().values())


class Sdist(sdist):
    """Writes the same archive from the same sources, where SOURCE_DATE_EPOCH is set."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, **owner):
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if format != "gztar" or not epoch:
            return super().make_archive(base_name, format, root_dir, base_dir, **owner)

        def plain(member):
            member.mtime = int(epoch)
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        path = f"{base_name}.tar.gz"
        with (
            open(path, "wb") as file,
            gzip.GzipFile("", "wb", mtime=int(epoch), fileobj=file) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            # Folders are walked in alphabetical order.
            archive.add(os.path.join(root_dir or "", base_dir), base_dir, filter=plain)
        return path


class BuildExt(build_ext):
    """Compiles two modules at a time, and replaces in-place modules of another flavour."""

    def build_extensions(self):
        # Some Pythons let every module search the folder of their own library; ours need none.
        linker = getattr(self.compiler, "linker_so", None)
        if linker:
            linker[:] = [flag for flag in linker if not flag.startswith("-Wl,-rpath")]
        super().build_extensions()

    def finalize_options(self):
        super().finalize_options()
        if self.parallel is None:
            self.parallel = min(2, os.cpu_count() or 1)

    def copy_extensions_to_source(self):
        # Without force, a release build is not copied over a newer debug one.
        self.force = True
        super().copy_extensions_to_source()


setup(
    ext_modules=extensions(),
    cmdclass={"build": Build, "build_py": BuildPy, "build_ext": BuildExt, "sdist": Sdist},
)
