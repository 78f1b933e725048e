"""What `import fmm` loads and costs."""

import os
import subprocess
import sys

import pytest

from tests.support import ROOT
from tests.support.clock import least_of_tries

NOT_AT_IMPORT = ("cupy", "jax", "matplotlib", "numba", "optuna", "pandas", "scipy", "threadpoolctl", "torch", "tqdm")
MOST = 120  # times a plain loop, beside numpy: a fifth of a second where processors are fast

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
CLOCK = """
import time; start = time.process_time(); import {}; print(time.process_time() - start)
from tests.support.clock import least_seconds, plain_loop; print(*least_seconds(plain_loop, turns=10))
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


@pytest.mark.timed
def test_import_costs_little_more_than_numpy() -> None:
    """On the processor, the least of each, in alternating pairs, so that a slow or busy machine slows all."""
    seconds: dict[str, list[float]] = {"numpy": [], "fmm": [], "loop": []}

    def loops_more() -> float:
        for name in ("numpy", "fmm") * 6:
            own, loop = map(float, printed(CLOCK.format(name)).split())
            seconds[name].append(own)
            seconds["loop"].append(loop)
        return (min(seconds["fmm"]) - min(seconds["numpy"])) / min(seconds["loop"])

    assert least_of_tries(loops_more, MOST, tries=5) < MOST, seconds
