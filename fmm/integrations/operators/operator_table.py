"""The operators of torch that a product comes down to: aten::mm, addmm, bmm, baddbmm, and their other forms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Operator:
    """One of aten's, and what Python is asked in its place: a tensor, or None if torch's own kernel is to answer."""

    name: str  # in aten
    axes: int  # of both operands
    question: str  # its schema in the library fmm_hook
    first: int = 0  # where the left operand stands among the arguments
    in_place: bool = False  # does the result take the place of what is added?

    @property
    def shown(self) -> str:
        """As torch has it in Python: the forms with `out` are not other functions there."""
        return f"torch.{self.name.removesuffix('.out')}"


_FACTORS = "Tensor a, Tensor b, Scalar beta, Scalar alpha"
_ADDED = f"Tensor added, {_FACTORS}"
OPERATORS = (
    Operator("mm", 2, "mm(Tensor a, Tensor b) -> Tensor?"),
    Operator("mm.out", 2, "mm_out(Tensor a, Tensor b, Tensor(a!) out) -> Tensor?"),
    Operator("bmm", 3, "bmm(Tensor a, Tensor b) -> Tensor?"),
    Operator("bmm.out", 3, "bmm_out(Tensor a, Tensor b, Tensor(a!) out) -> Tensor?"),
    Operator("addmm", 2, f"addmm({_ADDED}) -> Tensor?", 1),
    Operator("addmm.out", 2, f"addmm_out({_ADDED}, Tensor(a!) out) -> Tensor?", 1),
    Operator("addmm_", 2, f"addmm_(Tensor(a!) added, {_FACTORS}) -> Tensor?", 1, True),
    Operator("baddbmm", 3, f"baddbmm({_ADDED}) -> Tensor?", 1),
    Operator("baddbmm.out", 3, f"baddbmm_out({_ADDED}, Tensor(a!) out) -> Tensor?", 1),
    Operator("baddbmm_", 3, f"baddbmm_(Tensor(a!) added, {_FACTORS}) -> Tensor?", 1, True),
)
