"""numpyro: stochastic variational inference of a regression, `svi.update` jitted."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from synthetic import batches

LIBRARIES = ("numpyro",)


def model(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


def make():
    ((x, y),) = [jax.device_put(batch) for batch in batches(count=1, features=4)]
    y = y.astype(jnp.float32)
    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(1e-3), Trace_ELBO())
    update = jax.jit(svi.update)

    def step(state, i):
        return update(state, x, y)

    return svi.init(jax.random.key(0), x, y), step
