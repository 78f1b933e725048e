"""What joins devices: how many bytes a second each sends while it receives as many, and what a message waits.

The table is `links.csv` beside this file; every row names its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from fmm.hardware.datasheets import read_records


@dataclass(frozen=True, slots=True)
class Link:
    """Of one device, each way; `kind`: inside a machine, or between machines. `capability`: of the devices that have
    it, "cpu" for none."""

    name: str
    kind: str
    capability: str
    gigabytes: float
    microseconds: float
    source: str

    def seconds(self, sent: float) -> float:
        """Of so many bytes, in one message or several at a time."""
        return self.microseconds * 1e-6 + sent / (self.gigabytes * 1e9) if sent else 0.0


@dataclass(frozen=True, slots=True)
class Network:
    """Machines of so many devices: neighbours in the mesh are in one."""

    inside: Link
    between: Link
    together: int = 8

    def link(self, source: int, dest: int) -> Link:
        return self.inside if source // self.together == dest // self.together else self.between

    def __str__(self) -> str:
        return f"{self.inside.name} among {self.together}, {self.between.name} beyond"


def link(name: str) -> Link:
    """A link by name, in any case and spacing: "nvlink 4", "InfiniBand-NDR"."""
    found = _link_table().get(_plain_name(name))
    if found is None:
        raise ValueError(
            f"unknown link {name!r}; the links are {', '.join(row.name for row in _link_table().values())}"
        )
    return found


def network_of(capability: str, together: int) -> Network:
    """What devices of this compute capability ("cpu": processes) are usually joined by."""
    rows = _link_table().values()
    inside = next((row for row in rows if row.capability == capability), link("PCIe 4"))
    between = {"NVLink 3": "InfiniBand HDR", "NVLink 5": "InfiniBand XDR"}.get(inside.name, "InfiniBand NDR")
    return Network(inside, link(between), max(together, 1))


def _plain_name(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


@cache
def _link_table() -> dict[str, Link]:
    return {_plain_name(row.name): row for row in read_records(Link, "fmm.hardware", "links.csv")}
