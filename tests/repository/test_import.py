"""What `import fmm` loads and costs, and that imports run one way."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support import ROOT

NOT_AT_IMPORT = ("cupy", "matplotlib", "optuna", "pandas", "scipy", "torch", "tqdm")
MAX_EXTRA_SECONDS = 0.150

# Left to right: each layer may import itself and the layers before it. What is in none of the folders is the
# runtime; the links' bare names are in no layer, since an installed fmm does not have them.
LAYERS = ("fmm.kernels", "fmm.perfmodel", "the runtime", "fmm.tuner", "a bare link")
BARE_LINKS = ("kernels", "perfmodel", "tuner")

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
CLOCK = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def printed(code: str) -> str:
    """What the code prints in a new interpreter that finds this tree's fmm."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["PYTHONPATH"] = str(ROOT)
    return subprocess.run([sys.executable, "-c", code], env=env, check=True, text=True, stdout=subprocess.PIPE).stdout


def layer(module: str) -> int:
    """The index in LAYERS of a module of fmm, or of a top-level name that is one of the links."""
    parts = module.split(".")
    if parts[0] in BARE_LINKS:
        return LAYERS.index("a bare link")
    folder = ".".join(parts[:2])
    return LAYERS.index(folder if folder in LAYERS else "the runtime")


def imported(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of every import in a module of the package, inside functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def upward_imports(source: str, module: str, package: str) -> list[str]:
    """The imports that run from a module of fmm to a later layer."""
    own = layer(module)
    return [
        f"{module}, line {line}: {LAYERS[own]} imports {name}, which is {LAYERS[layer(name)]}"
        for line, name in imported(source, package)
        if name.split(".")[0] in ("fmm", *BARE_LINKS) and layer(name) > own
    ]


def modules() -> Iterator[tuple[str, str, str]]:
    """Source, dotted name and package of every file of fmm."""
    for path in sorted((ROOT / "fmm").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield path.read_text(encoding="utf-8"), name, ".".join(parts[:-1])


def test_import_asks_for_numpy_alone() -> None:
    assert printed(WATCH + "import fmm; print(Watch.asked)").strip() == "[]"


def test_the_watch_sees_a_guarded_import_of_something_absent() -> None:
    # Without this the test above could pass because it watches nothing.
    guarded = "\ntry:\n    import torch.absent\nexcept ImportError:\n    pass\nprint(Watch.asked)"
    assert "torch" in printed(WATCH + guarded)


@pytest.mark.timed
def test_import_costs_little_more_than_numpy() -> None:
    """The least of each, in alternating pairs, so that a busy machine slows both: more pairs if it is that busy."""
    pairs: list[list[float]] = []
    extra = MAX_EXTRA_SECONDS
    while len(pairs) < 32 and extra >= MAX_EXTRA_SECONDS:
        pairs += [[float(printed(CLOCK.format(name))) for name in ("numpy", "fmm")] for _ in range(8)]
        numpy, fmm = map(min, zip(*pairs, strict=True))
        extra = fmm - numpy
    assert extra < MAX_EXTRA_SECONDS, f"import fmm takes {extra * 1e3:.0f} ms more than import numpy: {pairs}"


def test_imports_run_one_way() -> None:
    files = list(modules())
    assert {layer(name) for _, name, _ in files} == {0, 1, 2, 3}, "a folder of fmm/ was not read"
    upward = [line for source, name, package in files for line in upward_imports(source, name, package)]
    assert not upward, "\n".join(upward)


@pytest.mark.parametrize(
    ("module", "package", "source", "upward"),
    [
        ("fmm.kernels.plans.plan", "fmm.kernels", "from .scheme import Scheme", False),  # a neighbour
        ("fmm.kernels", "fmm.kernels", "from . import scheme", False),  # a package's own module
        ("fmm.kernels.plans.plan", "fmm.kernels", "from ..perfmodel import cost", True),  # relative, one up
        ("fmm.kernels.plans.plan", "fmm.kernels", "from .. import perfmodel", True),  # the name is the module
        ("fmm.kernels.plans.plan", "fmm.kernels", "def f():\n    import fmm.tuner", True),  # inside a function
        ("fmm.kernels.plans.plan", "fmm.kernels", "from fmm import matmul", True),  # the runtime
        ("fmm.perfmodel.cost", "fmm.perfmodel", "from fmm.kernels.plans.plan import Plan", False),  # downward
        ("fmm.perfmodel.cost", "fmm.perfmodel", "import fmm.config.files", True),  # the runtime
        ("fmm", "fmm", "from .perfmodel import cost", False),  # downward, from the package itself
        ("fmm.config.files", "fmm", "from . import tuner", True),  # the runtime and the tuner
        ("fmm.tuner.cli", "fmm.tuner", "import fmm\nfrom ..kernels import plan", False),  # the top sees all
        ("fmm.tuner.cli", "fmm.tuner", "from kernels import plan", True),  # a link is not installed
        ("fmm.kernels.plans.plan", "fmm.kernels", "import numpy.linalg", False),  # not ours
    ],
)
def test_upward_imports_are_found(module: str, package: str, source: str, upward: bool) -> None:
    assert bool(upward_imports(source, module, package)) is upward
