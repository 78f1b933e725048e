"""What `import fmm` loads and costs."""

import os
import subprocess
import sys

from tests.support import ROOT

NOT_AT_IMPORT = ("cupy", "jax", "matplotlib", "numba", "optuna", "pandas", "scipy", "threadpoolctl", "torch", "tqdm")

# Notes what is asked for, not only what is found: a guarded import of something absent counts too.
WATCH = f"""
import sys

class Watch:
    asked = []
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_AT_IMPORT}:
            self.asked.append(name)

sys.meta_path.insert(0, Watch())
"""


def printed(code: str) -> str:
    """What the code prints in a new interpreter that finds this tree's fmm."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["PYTHONPATH"] = str(ROOT)
    return subprocess.run([sys.executable, "-c", code], env=env, check=True, text=True, stdout=subprocess.PIPE).stdout


def test_import_asks_for_numpy_alone() -> None:
    assert printed(WATCH + "import fmm; print(Watch.asked)").strip() == "[]"


def test_the_watch_sees_a_guarded_import_of_something_absent() -> None:
    # Without this the test above could pass because it watches nothing.
    guarded = "\ntry:\n    import torch.absent\nexcept ImportError:\n    pass\nprint(Watch.asked)"
    assert "torch" in printed(WATCH + guarded)
