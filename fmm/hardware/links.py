"""Links between devices, such as NVLink and InfiniBand, with their bandwidth and the latency of a message.

The links are the rows of `links.csv` in this folder. Every row names the source of its numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from fmm.hardware.datasheets import normalized_name, read_records


@dataclass(frozen=True, slots=True)
class Link:
    """The link that connects a device to other devices."""

    name: str
    kind: str  # "inside" for a link between devices of one machine, "between" for a link between machines
    # compute capabilities of the devices with this link; "cpu" for links between processors; empty: any capability
    capability: str
    gigabytes: float  # GB/s in each direction, while both directions are used
    microseconds: float  # latency of a message in microseconds
    source: str

    def message_seconds(self, sent: float) -> float:
        """Return the seconds to send `sent` bytes in one message or in several concurrent messages."""
        return self.microseconds * 1e-6 + sent / (self.gigabytes * 1e9) if sent else 0.0


@dataclass(frozen=True, slots=True)
class Network:
    """A network of equal machines with `together` devices each; devices with consecutive indices share a machine."""

    inside: Link  # link between devices of one machine
    between: Link  # link between devices of two machines
    together: int = 8  # number of devices of a machine

    def link_between(self, source: int, dest: int) -> Link:
        """Return the link between the devices with the indices `source` and `dest`."""
        return self.inside if self.share_machine(source, dest) else self.between

    def share_machine(self, source: Any, dest: Any) -> Any:
        """Return True if the devices with the indices `source` and `dest` share a machine; elementwise for arrays."""
        return source // self.together == dest // self.together

    def __str__(self) -> str:
        return f"{self.inside.name} among {self.together}, {self.between.name} beyond"


def link_by_name(name: str) -> Link:
    """Return a link by name, in any case and spacing: "nvlink 4", "InfiniBand-NDR"."""
    found = _link_table().get(normalized_name(name))
    if found is None:
        raise ValueError(
            f"unknown link {name!r}; the links are {', '.join(row.name for row in _link_table().values())}"
        )
    return found


def default_network(capability: str, together: int) -> Network:
    """Return the most common network of machines that have `together` devices of this compute capability each.

    The capability "cpu" stands for processes on CPUs.
    """
    rows = _link_table().values()
    inside = next((row for row in rows if capability in row.capability.split()), link_by_name("PCIe 4"))
    between = {"NVLink 3": "InfiniBand HDR", "NVLink 5": "InfiniBand XDR"}.get(inside.name, "InfiniBand NDR")
    return Network(inside, link_by_name(between), max(together, 1))


@cache
def _link_table() -> dict[str, Link]:
    return {normalized_name(row.name): row for row in read_records(Link, "fmm.hardware", "links.csv")}
