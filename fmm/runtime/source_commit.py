"""Find the git commit of the source tree from which fmm runs."""

from __future__ import annotations

import os
from pathlib import Path


def source_commit() -> str:
    """Return the git commit of the source tree, with `-dirty` if files have changed; empty for an installed wheel.

    For a source tree that was copied without its repository, the variable FMM_COMMIT sets the commit.
    """
    if commit := os.environ.get("FMM_COMMIT"):
        return commit
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # git would search the folders above for a repository
        return ""
    import subprocess  # imported here, so that `import fmm` is fast

    try:
        found = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
