"""Small leaves travel together: one buffer for many of them, from call to call.

jaxlib pays for each array of a call, however small it is. `pack` puts the small leaves of a tree
into a few flat buffers, `Packed` stands for the tree, and `carry` compiles a step that unpacks,
computes and packs in one executable. Only JAX's public API is used. From leaf to call:

`_groups` which leaves travel together · `_forms` into buffers and out of them · `_move` the same by
executables of their own · `_plan` where each leaf of a tree is · `_packed` what stands for the tree
· `_agree` a carry keeps its types · `_host` numpy arrays of a call in one buffer · `_carry` a step
from `Packed` to `Packed`, whose calls after the first one `jaxmarshal._core.entries.carried` makes.
"""

from jaxmarshal.packing._carry import carry
from jaxmarshal.packing._packed import Packed, pack

__all__ = ["Packed", "carry", "pack"]
