"""Where data of the host and arrays go: what JAX did with their like is recorded here."""
