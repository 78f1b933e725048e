"""How matrices may be placed on a mesh of processes: what callers may ask for, and what the parts still lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.tensor import Partial, Replicate, Shard

from fmm.kernels.distributed.blocks import Cuts

OPERAND = Shard, Replicate, Partial
RESULT = Shard, Replicate  # a sum whose parts are still to be added up is nobody's wish: torch brings none about


def refused_placements(mesh: Any, whose: str, given: Any, kinds: tuple[type, ...]) -> ValueError | None:
    """Why a matrix cannot be placed so; None if it can."""
    found = given if isinstance(given, Sequence) else ()
    fits = all(type(place) in kinds and getattr(place, "dim", 0) in (-2, -1, 0, 1) for place in found)
    if len(found) == mesh.ndim and fits:
        return None
    names = ", ".join("Shard(0), Shard(1)" if kind is Shard else f"{kind.__name__}()" for kind in kinds)
    each = f"a list with one of {names} for each of the mesh's dimensions, of which there are {mesh.ndim}"
    return ValueError(f"the placements of {whose} are to be {each}, not {given}")


def checked_placements(mesh: Any, whose: str, given: Any, kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """How a matrix is cut: unless that is given, by rows, or in blocks on a mesh of two dimensions."""
    if given is None:
        if mesh.ndim > 2:
            raise ValueError(f"a mesh of {mesh.ndim} dimensions does not say how {whose} is cut: placements do")
        return (Shard(0), Shard(1))[: mesh.ndim]
    if (refused := refused_placements(mesh, whose, given, kinds)) is not None:
        raise refused
    return tuple(given)


def cuts_of(x: Any) -> Cuts:
    """Which axis each dimension of the mesh cuts; what is to be added up will be cut by rows."""
    return tuple(_cut(place) for place in x.placements)


def _cut(place: Any) -> int | None:
    if type(place) is Shard:
        return int(place.dim) % 2
    return 0 if type(place) is Partial else None


def added_up_as(place: Any, placements: Sequence[Any]) -> list[Any]:
    """The same placements, with this one for each whose parts are still to be added up."""
    return [place if type(given) is Partial else given for given in placements]
