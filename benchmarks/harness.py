"""What every benchmark shares: paired shuffled rounds on a device, and one writer of results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fmm.config.store import replace_file

RESULTS = Path(__file__).parents[1] / "results"
Row = dict[str, Any]


def write_result(path: Path, environment: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """Write {"environment", ...more, "rows"} as JSON, a line a row; replace an older file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "".join(f"{json.dumps(name)}: {json.dumps(value, indent=1)},\n" for name, value in more.items())
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    replace_file(path, f'{{\n"environment": {json.dumps(environment, indent=1)},\n{head}"rows": [\n{lines}\n]\n}}\n')
