"""After products that had to be computed again: for how long the next ones are left to the vendor."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_REST, LAST_REST = (
    8,
    4096,
)  # products left to the vendor after one was computed again: doubled each time, up to this


@dataclass
class Trust:
    """May the next product be a fast one? Not for a while after one that had to be computed again: such data tend to
    come again, and computing a product twice costs more than the vendor's."""

    recomputed: int = 0  # as many as were known of at the last question
    rest: int = FIRST_REST
    left: int = 0
    quiet: int = 0

    def holds(self, recomputed: int) -> bool:
        """`recomputed`: how many there have been by now."""
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
