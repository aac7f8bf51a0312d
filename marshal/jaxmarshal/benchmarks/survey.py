"""Everyday calls outside of `jit`: operators, methods of arrays, and public functions.

Nothing here is chosen for being fast. The floor of every call is one dispatch, as a program can
make it: plain JAX's warm call of a jitted function of one array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, nn, random
from jax.scipy import signal, special, stats

from jaxmarshal.benchmarks.case import Case, Sides

Given = SimpleNamespace


@cache
def _given() -> Given:
    """The arguments of all calls: small arrays on the default device, and keys."""
    data = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
    x = jax.device_put(data)
    return Given(
        x=x, y=x + 1, v=x[0], square=jax.device_put(np.eye(3, dtype=np.float32)),
        i=jax.device_put(np.array([0, 2], np.int32)), n=jax.device_put(np.arange(5)),
        mask=x > 0.5, scalar=jnp.float32(3), key=random.key(0), raw=random.PRNGKey(0),
        host=data, half=x.astype(jnp.float16), flag=x[0, 0] < 1, count=jnp.int32(3),
        keys=random.split(random.key(0), 4),
        metrics={"loss": x[0, 1], "accuracy": x[1, 0], "step": jnp.int32(7)},
    )  # fmt: skip


@jax.jit
def _negative(x: Any) -> Any:
    return -x


def _double(x: Any) -> Any:
    return x * 2


def _sum(carry: Any, y: Any) -> Any:
    return carry + y, carry


def _small(state: Any) -> Any:
    return state[0] < 4


def _step(state: Any) -> Any:
    return state[0] + 1, state[1] * 2


def _add_index(i: Any, x: Any) -> Any:
    return x + i


CALLS: dict[str, Callable[[Given], Any]] = {
    # Operators
    "x + y": lambda g: g.x + g.y,
    "x + 1.0": lambda g: g.x + 1.0,
    "2 * x": lambda g: 2 * g.x,
    "x - x": lambda g: g.x - g.x,
    "x / y": lambda g: g.x / g.y,
    "x ** 2": lambda g: g.x**2,
    "-x": lambda g: -g.x,
    "abs(x)": lambda g: abs(g.x),
    "x > 0.5": lambda g: g.x > 0.5,
    "x == y": lambda g: g.x == g.y,
    "x @ x.T": lambda g: g.x @ g.x.T,
    "~mask": lambda g: ~g.mask,
    "mask & mask": lambda g: g.mask & g.mask,
    "n % 2": lambda g: g.n % 2,
    "n // 2": lambda g: g.n // 2,
    "x + numpy": lambda g: g.x + g.host,
    "divmod(n, 2)": lambda g: divmod(g.n, 2),
    # Indexing
    "x[0]": lambda g: g.x[0],
    "x[-1]": lambda g: g.x[-1],
    "x[0, 1]": lambda g: g.x[0, 1],
    "x[1:]": lambda g: g.x[1:],
    "x[:, 0]": lambda g: g.x[:, 0],
    "x[::2]": lambda g: g.x[::2],
    "x[None]": lambda g: g.x[None],
    "x[..., None]": lambda g: g.x[..., None],
    "x[i]": lambda g: g.x[g.i],
    "x[:, i]": lambda g: g.x[:, g.i],
    "x[mask]": lambda g: g.x[g.mask],
    "x.at[0].set(0.)": lambda g: g.x.at[0].set(0.0),
    "x.at[i].set(0.)": lambda g: g.x.at[g.i].set(0.0),
    "x.at[0].add(1.)": lambda g: g.x.at[0].add(1.0),
    "x.at[i].add(v)": lambda g: g.x.at[g.i].add(g.v),
    "x.at[0].multiply(2.)": lambda g: g.x.at[0].multiply(2.0),
    "x.at[0].get()": lambda g: g.x.at[0].get(),
    # Methods
    "x.sum()": lambda g: g.x.sum(),
    "x.mean(0)": lambda g: g.x.mean(0),
    "x.max()": lambda g: g.x.max(),
    "x.argmax()": lambda g: g.x.argmax(),
    "x.reshape(4, 3)": lambda g: g.x.reshape(4, 3),
    "x.ravel()": lambda g: g.x.ravel(),
    "x.flatten()": lambda g: g.x.flatten(),
    "x.T": lambda g: g.x.T,
    "x.transpose(1, 0)": lambda g: g.x.transpose(1, 0),
    "x.astype(int32)": lambda g: g.x.astype(jnp.int32),
    "x.astype(float32)": lambda g: g.x.astype(jnp.float32),
    "x.copy()": lambda g: g.x.copy(),
    "x.squeeze()": lambda g: g.x.squeeze(),
    "x.clip(0, 1)": lambda g: g.x.clip(0, 1),
    "x.round()": lambda g: g.x.round(),
    "x.dot(v)": lambda g: g.x.dot(g.v),
    "x.cumsum()": lambda g: g.x.cumsum(),
    "v.sort()": lambda g: g.v.sort(),
    "mask.any()": lambda g: g.mask.any(),
    "x.std()": lambda g: g.x.std(),
    # Reading
    "float(scalar)": lambda g: float(g.scalar),
    "int(count)": lambda g: int(g.count),
    "bool(flag)": lambda g: bool(g.flag),
    "f'{scalar:.3f}'": lambda g: f"{g.scalar:.3f}",
    "scalar.item()": lambda g: g.scalar.item(),
    "jax.device_get(x)": lambda g: jax.device_get(g.x),
    "jax.device_get(dict of 3)": lambda g: jax.device_get(g.metrics),
    # Creation
    "jnp.zeros(3)": lambda g: jnp.zeros(3),
    "jnp.ones((2, 3))": lambda g: jnp.ones((2, 3)),
    "jnp.full(3, 1.5)": lambda g: jnp.full(3, 1.5),
    "jnp.zeros_like": lambda g: jnp.zeros_like(g.x),
    "jnp.ones_like": lambda g: jnp.ones_like(g.x),
    "jnp.full_like": lambda g: jnp.full_like(g.x, 2.0),
    "jnp.empty(3)": lambda g: jnp.empty(3),
    "jnp.arange(5)": lambda g: jnp.arange(5),
    "jnp.arange(0., 1., .1)": lambda g: jnp.arange(0.0, 1.0, 0.1),
    "jnp.linspace": lambda g: jnp.linspace(0.0, 1.0, 5),
    "jnp.eye(4)": lambda g: jnp.eye(4),
    "jnp.identity(3)": lambda g: jnp.identity(3),
    "jnp.tri(3)": lambda g: jnp.tri(3),
    "jnp.array([1., 2., 3.])": lambda g: jnp.array([1.0, 2.0, 3.0]),
    "jnp.asarray(1.0)": lambda g: jnp.asarray(1.0),
    "jnp.asarray(numpy)": lambda g: jnp.asarray(g.host),
    "jnp.asarray(numpy, f16)": lambda g: jnp.asarray(g.host, jnp.float16),
    "jnp.asarray(x)": lambda g: jnp.asarray(g.x),
    "jnp.array(x)": lambda g: jnp.array(g.x),
    "jnp.asarray(x, f16)": lambda g: jnp.asarray(g.x, jnp.float16),
    "jnp.asarray(1.0, f32)": lambda g: jnp.asarray(1.0, jnp.float32),
    "jnp.float32(1.5)": lambda g: jnp.float32(1.5),
    "jnp.diag(v)": lambda g: jnp.diag(g.v),
    "jnp.meshgrid": lambda g: jnp.meshgrid(g.v, g.v),
    "jnp.tril_indices(3)": lambda g: jnp.tril_indices(3),
    # jax.numpy
    "jnp.add": lambda g: jnp.add(g.x, g.y),
    "jnp.sin": lambda g: jnp.sin(g.x),
    "jnp.exp": lambda g: jnp.exp(g.x),
    "jnp.log": lambda g: jnp.log(g.y),
    "jnp.sqrt": lambda g: jnp.sqrt(g.x),
    "jnp.maximum": lambda g: jnp.maximum(g.x, 0),
    "jnp.clip": lambda g: jnp.clip(g.x, 0, 1),
    "jnp.where": lambda g: jnp.where(g.mask, g.x, 0.0),
    "jnp.where arrays": lambda g: jnp.where(g.mask, g.x, g.y),
    "jnp.sum": lambda g: jnp.sum(g.x),
    "jnp.sum axis": lambda g: jnp.sum(g.x, axis=0),
    "jnp.mean": lambda g: jnp.mean(g.x),
    "jnp.var": lambda g: jnp.var(g.x),
    "jnp.max": lambda g: jnp.max(g.x, axis=1),
    "jnp.argmax": lambda g: jnp.argmax(g.x),
    "jnp.dot": lambda g: jnp.dot(g.x, g.v),
    "jnp.matmul": lambda g: jnp.matmul(g.x, g.v),
    "jnp.einsum": lambda g: jnp.einsum("ij,kj->ik", g.x, g.y),
    "jnp.outer": lambda g: jnp.outer(g.v, g.v),
    "jnp.tensordot": lambda g: jnp.tensordot(g.x, g.v, 1),
    "jnp.concatenate": lambda g: jnp.concatenate([g.x, g.y]),
    "jnp.stack": lambda g: jnp.stack([g.x, g.y]),
    "jnp.vstack": lambda g: jnp.vstack([g.v, g.v]),
    "jnp.hstack": lambda g: jnp.hstack([g.v, g.v]),
    "jnp.split": lambda g: jnp.split(g.x, 2, axis=1),
    "jnp.reshape": lambda g: jnp.reshape(g.x, (4, 3)),
    "jnp.transpose": lambda g: jnp.transpose(g.x),
    "jnp.swapaxes": lambda g: jnp.swapaxes(g.x, 0, 1),
    "jnp.moveaxis": lambda g: jnp.moveaxis(g.x, 0, 1),
    "jnp.expand_dims": lambda g: jnp.expand_dims(g.x, 0),
    "jnp.squeeze": lambda g: jnp.squeeze(g.x),
    "jnp.broadcast_to": lambda g: jnp.broadcast_to(g.v, (3, 4)),
    "jnp.tile": lambda g: jnp.tile(g.v, 2),
    "jnp.repeat": lambda g: jnp.repeat(g.v, 2),
    "jnp.pad": lambda g: jnp.pad(g.x, 1),
    "jnp.roll": lambda g: jnp.roll(g.x, 1),
    "jnp.flip": lambda g: jnp.flip(g.x),
    "jnp.sort": lambda g: jnp.sort(g.v),
    "jnp.argsort": lambda g: jnp.argsort(g.v),
    "jnp.take": lambda g: jnp.take(g.x, g.i, axis=0),
    "jnp.cumsum": lambda g: jnp.cumsum(g.v),
    "jnp.diff": lambda g: jnp.diff(g.v),
    "jnp.isnan": lambda g: jnp.isnan(g.x),
    "jnp.any": lambda g: jnp.any(g.mask),
    "jnp.all": lambda g: jnp.all(g.mask),
    "jnp.logical_and": lambda g: jnp.logical_and(g.mask, g.mask),
    "jnp.nonzero": lambda g: jnp.nonzero(g.v),
    "jnp.linalg.norm": lambda g: jnp.linalg.norm(g.v),
    "jnp.linalg.inv": lambda g: jnp.linalg.inv(g.square),
    "jnp.linalg.solve": lambda g: jnp.linalg.solve(g.square, g.square),
    "jnp.linalg.cholesky": lambda g: jnp.linalg.cholesky(g.square),
    "jnp.fft.fft": lambda g: jnp.fft.fft(g.v),
    "jnp.triu": lambda g: jnp.triu(g.square),
    "jnp.allclose": lambda g: jnp.allclose(g.x, g.x),
    "jnp.array_equal": lambda g: jnp.array_equal(g.x, g.x),
    # jax.lax
    "lax.add": lambda g: lax.add(g.x, g.y),
    "lax.mul": lambda g: lax.mul(g.x, 2.0),
    "lax.neg": lambda g: lax.neg(g.x),
    "lax.exp": lambda g: lax.exp(g.x),
    "lax.select": lambda g: lax.select(g.mask, g.x, g.y),
    "lax.dynamic_slice": lambda g: lax.dynamic_slice(g.x, (0, 1), (2, 2)),
    "lax.dynamic_update_slice": lambda g: lax.dynamic_update_slice(g.x, g.y, (0, 0)),
    "lax.broadcast": lambda g: lax.broadcast(g.v, (2,)),
    "lax.reshape": lambda g: lax.reshape(g.x, (4, 3)),
    "lax.concatenate": lambda g: lax.concatenate([g.x, g.y], 0),
    "lax.convert_element_type": lambda g: lax.convert_element_type(g.x, jnp.int32),
    "lax.stop_gradient": lambda g: lax.stop_gradient(g.x),
    "lax.top_k": lambda g: lax.top_k(g.v, 2),
    "lax.iota": lambda g: lax.iota(jnp.int32, 4),
    "lax.full": lambda g: lax.full((3,), 1.5),
    "lax.cumsum": lambda g: lax.cumsum(g.v),
    "lax.cond": lambda g: lax.cond(g.flag, jnp.sin, _double, g.x),
    "lax.switch": lambda g: lax.switch(1, (_double, jnp.negative), g.x),
    "lax.scan": lambda g: lax.scan(_sum, g.scalar, g.v),
    "lax.while_loop": lambda g: lax.while_loop(_small, _step, (0, g.x)),
    "lax.fori_loop": lambda g: lax.fori_loop(0, 3, _add_index, g.x),
    # jax.nn
    "nn.relu": lambda g: nn.relu(g.x),
    "nn.sigmoid": lambda g: nn.sigmoid(g.x),
    "nn.softmax": lambda g: nn.softmax(g.x),
    "nn.log_softmax": lambda g: nn.log_softmax(g.x),
    "nn.gelu": lambda g: nn.gelu(g.x),
    "nn.silu": lambda g: nn.silu(g.x),
    "nn.softplus": lambda g: nn.softplus(g.x),
    "nn.one_hot": lambda g: nn.one_hot(g.i, 4),
    "nn.logsumexp": lambda g: nn.logsumexp(g.x),
    "nn.leaky_relu": lambda g: nn.leaky_relu(g.x),
    # jax.scipy
    "scipy.special.erf": lambda g: special.erf(g.x),
    "scipy.special.gammaln": lambda g: special.gammaln(g.x),
    "scipy.special.expit": lambda g: special.expit(g.x),
    "scipy.special.xlogy": lambda g: special.xlogy(g.x, g.y),
    "scipy.special.entr": lambda g: special.entr(g.x),
    "scipy.stats.norm.logpdf": lambda g: stats.norm.logpdf(g.x, 0.5, 2.0),
    "scipy.stats.norm.cdf": lambda g: stats.norm.cdf(g.x),
    "scipy.stats.gamma.logpdf": lambda g: stats.gamma.logpdf(g.x, 2.0),
    "scipy.signal.convolve": lambda g: signal.convolve(g.v, g.v),
    # jax.random
    "random.key(0)": lambda g: random.key(0),
    "random.PRNGKey(0)": lambda g: random.PRNGKey(0),
    "random.split": lambda g: random.split(g.key),
    "random.split raw": lambda g: random.split(g.raw),
    "random.fold_in": lambda g: random.fold_in(g.key, 3),
    "random.normal": lambda g: random.normal(g.key, (3,)),
    "random.normal raw": lambda g: random.normal(g.raw, (3,)),
    "random.uniform": lambda g: random.uniform(g.key, (3,)),
    "random.randint": lambda g: random.randint(g.key, (3,), 0, 5),
    "random.bernoulli": lambda g: random.bernoulli(g.key, 0.5, (3,)),
    "random.categorical": lambda g: random.categorical(g.key, g.v),
    "random.permutation": lambda g: random.permutation(g.key, 5),
    "random.choice": lambda g: random.choice(g.key, 5),
    "k1, k2 = random.split": lambda g: tuple(random.split(g.key)),
    "keys[0]": lambda g: g.keys[0],
}


def _build(function: Callable[[Given], Any]) -> Sides:
    given = _given()
    call = partial(function, given)
    call()    # plugins lack some of what the CPU has
    return Sides(call, call, partial(_negative, given.x), True)


def survey_cases() -> Iterator[Case]:
    """One case for each call."""
    for name, function in CALLS.items():
        yield Case(name, "functions", partial(_build, function), watched=False)
