"""Dispatch interfaces of earlier JAX releases, running on today's jaxlib: `dispatch_v0_3`."""
