"""The version of jaxmarshal, stated here and nowhere else."""

__version__ = "0.2.0"
