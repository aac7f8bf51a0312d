"""equinox: the same `filter_jit` step, batches that lie on the device."""

import equinox_train_numpy
import jax

LIBRARIES = ("equinox", "optax")


def make():
    return equinox_train_numpy.make(place=jax.device_put)
