"""`import jaxmarshal.auto` installs jaxmarshal. It does nothing else, and nothing twice."""

from jaxmarshal._jax.patching import install

install()
