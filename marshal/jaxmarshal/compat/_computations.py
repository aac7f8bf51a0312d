"""`XlaComputation`, which is lowered, and `XlaCompiledComputation`, which can be called."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from jax.api_util import safe_map

from jaxmarshal._core.entries import v0_3
from jaxmarshal._jax import private_v0_3
from jaxmarshal.compat._arguments import arg_spec
from jaxmarshal.compat._compile import compile_options, compile_or_get_cached, log_elapsed_time
from jaxmarshal.compat._execution import (
    Execution,
    _execute_compiled,
    _execute_replicated,
    _execute_trivial,
)
from jaxmarshal.compat._handlers import aval_to_num_buffers, aval_to_result_handler


class XlaComputation:
    """A computation in the compiler's language.

    Attributes:
      name: of the function it was made of.
      compile_args: what `XlaCompiledComputation.from_xla_computation` needs besides, or
        `from_trivial_jaxpr`.
    """

    name: str

    def __init__(
        self, name: str, hlo: Any, is_trivial: bool, donated_invars: Sequence[bool] | None,
        **compile_args: Any,
    ) -> None:  # fmt: skip
        self.name = name
        self._hlo = hlo
        self._is_trivial = is_trivial
        self._donated_invars = donated_invars
        self._executable: XlaCompiledComputation | None = None
        self.compile_args = compile_args

    def is_trivial(self) -> bool:
        """Are the results only arguments, constants and literals? Then nothing is compiled."""
        return self._is_trivial

    def hlo(self) -> Any:
        """The computation as HLO, an `XlaComputation` of jaxlib.

        Raises:
          ValueError: for a trivial one.
        """
        if self.is_trivial():
            raise ValueError("A trivial computation has no HLO")
        private_v0_3.need("HAVE_HLO")
        if isinstance(self._hlo, private_v0_3.HloComputation):
            return self._hlo
        return private_v0_3.hlo_of_mlir(
            private_v0_3.module_to_string(self._hlo), use_tuple_args=self.compile_args["tuple_args"]
        )

    def mhlo(self) -> str:
        """The computation as the text of an MLIR module, today in StableHLO's dialect.

        Raises:
          ValueError: for a trivial one.
        """
        if self.is_trivial():
            raise ValueError("A trivial computation has no MHLO")
        private_v0_3.need("HAVE_COMPILE")
        if private_v0_3.HAVE_HLO and isinstance(self._hlo, private_v0_3.HloComputation):
            return private_v0_3.mlir_of_hlo(self._hlo)
        return private_v0_3.module_to_string(self._hlo)

    def compile(self) -> XlaCompiledComputation:
        """The compiled computation, the same one each time."""
        if self._executable is None:
            if self.is_trivial():
                make = XlaCompiledComputation.from_trivial_jaxpr
            else:
                make = partial(XlaCompiledComputation.from_xla_computation, self.name, self._hlo)
            self._executable = make(**self.compile_args)
        return self._executable


class XlaCompiledComputation:
    """A computation that can be called.

    Attributes:
      in_avals: of the arguments that are used.
      unsafe_call: performs a call without comparing its arguments with `in_avals`.
    """

    def __init__(
        self, xla_executable: Any, in_avals: Sequence[Any], kept_var_idx: Any, unsafe_call: Any
    ) -> None:
        self._xla_executable = xla_executable
        self.in_avals = in_avals
        self._kept_var_idx = kept_var_idx
        self.unsafe_call = unsafe_call
        #: What plans of `call` stand for; any other `unsafe_call` is simply called.
        self._planned = unsafe_call if type(unsafe_call) is Execution else None

    @staticmethod
    def from_xla_computation(
        name: str, xla_computation: Any, nreps: int, device: Any, backend: Any, tuple_args: bool,
        in_avals: Sequence[Any], out_avals: Sequence[Any], kept_var_idx: Any,
    ) -> XlaCompiledComputation:  # fmt: skip
        """Compile a computation.

        Args:
          name: for messages.
          xla_computation: an MLIR module, its text, or an `XlaComputation` of HLO.
          nreps: how many devices run it, each with a copy of every argument.
          device: the device it is for and its results are bound to, or None.
          backend: the client.
          tuple_args: does the computation take its arguments as one tuple?
          in_avals: of the arguments that are used.
          out_avals: of the results.
          kept_var_idx: the indices of the arguments that are used.
        """
        handlers = safe_map(partial(aval_to_result_handler, device), out_avals)
        options = compile_options(backend, nreps, device)
        options.parameter_is_tupled_arguments = tuple_args
        with log_elapsed_time(f"Finished XLA compilation of {name} in {{elapsed_time}} sec"):
            compiled = compile_or_get_cached(backend, xla_computation, options)
        counts = None if len(out_avals) == 1 else safe_map(aval_to_num_buffers, out_avals)
        execute = _execute_compiled if nreps == 1 else _execute_replicated
        unsafe_call = Execution(execute, name, compiled, counts, handlers, kept_var_idx)
        return XlaCompiledComputation(compiled, in_avals, kept_var_idx, unsafe_call)

    def is_trivial(self) -> bool:
        """Is there nothing to compile?"""
        return self._xla_executable is None

    def xla_executable(self) -> Any:
        """The loaded executable.

        Raises:
          ValueError: for a trivial computation.
        """
        if self.is_trivial():
            raise ValueError("A trivial compiled computation has no XLA executable")
        return self._xla_executable

    @staticmethod
    def from_trivial_jaxpr(
        jaxpr: Any, consts: Sequence[Any], device: Any, in_avals: Sequence[Any],
        out_avals: Sequence[Any], kept_var_idx: Any,
    ) -> XlaCompiledComputation:  # fmt: skip
        """What runs a jaxpr without equations; see `_execute_trivial`."""
        handlers = safe_map(partial(aval_to_result_handler, device), out_avals)
        unsafe_call = partial(
            _execute_trivial, jaxpr, device, consts, out_avals, handlers, kept_var_idx
        )
        return XlaCompiledComputation(None, in_avals, kept_var_idx, unsafe_call)

    @v0_3.bind_call
    def call(self, *args: Any) -> Any:
        """Run the computation with these arguments.

        Raises:
          TypeError: where number, shapes or dtypes of the arguments that are used are not those
            that the computation was compiled for.
        """
        specs = safe_map(arg_spec, args)
        avals = [spec[0] for i, spec in enumerate(specs) if i in self._kept_var_idx]
        check_arg_avals_for_call(self.in_avals, avals)
        run = self.unsafe_call
        # A plan of its own would be recorded for the call that goes unchecked.
        return partial.__call__(run, *args) if type(run) is Execution else run(*args)


def check_arg_avals_for_call(ref_avals: Sequence[Any], arg_avals: Sequence[Any]) -> None:
    """Compare the arguments of a call with what was compiled for; weak types are not compared.

    Raises:
      TypeError: if their number, shapes or dtypes differ.
    """
    if len(ref_avals) != len(arg_avals):
        raise TypeError(
            f"Computation compiled for {len(ref_avals)} inputs but called with {len(arg_avals)}"
        )
    if all(map(private_v0_3.typematch, ref_avals, arg_avals)):
        return
    compiled_for, called_with = (", ".join(map(str, avals)) for avals in (ref_avals, arg_avals))
    raise TypeError(
        f"Computation compiled for input types:\n  {compiled_for}\ncalled with:\n  {called_with}"
    )
