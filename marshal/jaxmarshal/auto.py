"""`import jaxmarshal.auto` installs jaxmarshal. It does nothing else, and nothing twice."""

from jaxmarshal._install import install

install()
