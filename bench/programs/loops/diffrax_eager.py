"""diffrax: one `diffeqsolve` after the other, each called as it is."""

import diffrax
import jax.numpy as jnp

LIBRARIES = ("diffrax",)


def field(t, y, args):
    return jnp.stack([y[1], -args * jnp.sin(y[0])])


def make():
    term, solver = diffrax.ODETerm(field), diffrax.Tsit5()
    strength = jnp.asarray(1.5)

    def step(y, i):
        solution = diffrax.diffeqsolve(
            term, solver, t0=0.0, t1=0.1, dt0=0.05, y0=y, args=strength
        )
        return solution.ys[-1], solution.stats["num_steps"]

    return jnp.asarray([1.0, 0.0]), step
