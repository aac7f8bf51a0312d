"""What happens to a call, in rooms whose arrows point down only.

    entries      one module for each thing that programs call
    replay       whole functions as the steps they took
    plans        a guard, and the executable that runs when it passes
    placement    where data of the host and arrays go
    context      the configuration that a call runs under
    values       what one object is

A room asks those below it. All of them ask `jaxmarshal._jax` for JAX's private names and count in
`jaxmarshal._reports.counting`.
"""
