"""What a property-based comparison proved: not only that two sides agree, but about what.

A test that draws its cases counts them by family (the context, say). At its end each family that
was drawn often has had a result at least once, unless it can only have errors, and calls were
accelerated, unless all of the family goes to JAX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from observe import total_hits

#: A family that was drawn less often proves nothing either way: most draws do not fit together.
ENOUGH = 20
#: The least share of all comparisons that has to have results.
SHARE = 0.2


class Proof:
    """Counts comparisons by family.

    Attributes:
      enough: how often a family must have been compared to prove something.
    """

    def __init__(self) -> None:
        self.enough = ENOUGH
        self.compared: Counter[str] = Counter()
        self.returned: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()

    def compare(
        self, family: str, reference: Callable[[], Any], accelerated: Callable[[], Any]
    ) -> Any:
        """The reference's observation, which jaxmarshal's must equal twice.

        The first of the two calls may record, the second may be fast.
        """
        expected = reference()
        before = total_hits()
        for _ in range(2):
            found = accelerated()
            assert found == expected, f"jax: {expected}\njaxmarshal: {found}"
        self.note(family, expected, total_hits() - before)
        return expected

    def note(self, family: str, observation: Any, hits: int) -> None:
        """Count a comparison that was made elsewhere."""
        self.compared[family] += 1
        self.returned[family] += observation[0][0] == "returned"
        self.hits[family] += hits

    def check(self, errors: Iterable[str] = (), slow: Iterable[str] = ()) -> None:
        """Fail where a family agreed about errors alone, or about nothing that was accelerated.

        Args:
          errors: families whose calls all fail.
          slow: families whose calls are all JAX's.
        """
        often = [family for family, number in self.compared.items() if number >= self.enough]
        assert self.compared, "nothing was compared"
        results, all_of_them = self.returned.total(), self.compared.total()
        assert results >= SHARE * all_of_them or set(self.compared) <= set(errors), (
            f"{results} of {all_of_them} comparisons were about results"
        )
        refused = [f for f in often if not self.returned[f] and f not in errors]
        assert not refused, f"all calls failed: {refused}"
        never = [f for f in often if not self.hits[f] and f not in (*errors, *slow)]
        assert not never, f"nothing was accelerated: {never}"
