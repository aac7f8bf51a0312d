"""The configuration that a call runs under, recognised by comparing pointers."""
