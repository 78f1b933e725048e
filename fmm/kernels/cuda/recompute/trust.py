"""After products that had to be computed again: for how long the next ones are left to the vendor."""

from __future__ import annotations

from dataclasses import dataclass

# How many products are left to the vendor after one was computed again: at first, and at most. It doubles each time.
FIRST_REST, LAST_REST = 8, 4096


@dataclass
class Trust:
    """May the next product be a fast one? Not for a while after one that had to be computed again.

    Such data tend to come again, and to compute a product twice costs more than the vendor's.
    """

    recomputed: int = 0  # how many products had been computed again at the last question
    rest: int = FIRST_REST  # how many are left to the vendor the next time
    left: int = 0  # how many still are
    quiet: int = 0  # how many went well since

    def holds(self, recomputed: int) -> bool:
        """May it be a fast one, if so many have been computed again by now?"""
        if recomputed != self.recomputed:
            self.recomputed, self.left, self.quiet = recomputed, self.rest, 0
            self.rest = min(2 * self.rest, LAST_REST)
        if self.left:
            self.left -= 1
            return False
        self.quiet += 1
        if self.quiet > self.rest:
            self.rest = FIRST_REST
        return True
