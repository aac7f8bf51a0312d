"""Eight CPU devices for every test, clean counts before each, hypothesis profiles."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import hypothesis
import jax
import pytest
from support import Fresh

import jaxmarshal

hypothesis.settings.register_profile(
    "quick", max_examples=300, deadline=None, derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.register_profile(
    "ci", max_examples=8000, deadline=None, derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile(os.environ.get("JAXMARSHAL_TEST_PROFILE", "quick"))

#: Is the object layout switched off, so that the readers use public attributes?
LAYOUT_OFF = os.environ.get("JAXMARSHAL_OBJECT_LAYOUT", "").lower() in ("off", "0", "false")


@pytest.fixture(autouse=True, scope="session")
def quick_collections():
    """Leave what JAX made at import out of the many collections that tests ask for."""
    jax.local_devices()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def clean_state():
    """Each test starts with nothing recorded, nothing counted and nothing installed."""
    jax.local_devices()
    jaxmarshal.uninstall()
    jaxmarshal.api.clear()
    jaxmarshal.reset_stats()
    yield
    jaxmarshal.uninstall()


@pytest.fixture(params=["jax", "jaxmarshal"])
def device_put(request):
    """The same test body against the reference and against the accelerated function."""
    return jax.device_put if request.param == "jax" else jaxmarshal.device_put


@pytest.fixture
def mesh():
    return jax.sharding.Mesh(jax.devices(), ("x",))


@pytest.fixture(scope="session")
def fresh():
    """Run source in a process without a backend; see `support.Fresh`."""
    server = Fresh()
    yield server
    server.close()
