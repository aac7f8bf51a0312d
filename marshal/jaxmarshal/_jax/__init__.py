"""The gateway: JAX's private names, what its objects are made of, and patching it in place."""
