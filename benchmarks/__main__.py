"""Run one benchmark: `python -m benchmarks NAME [--help] [OPTION ...]`; without a name, list them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from benchmarks.harness import SlowKernelError

# The module of each benchmark has a function main(arguments) that returns the exit code.
BENCHMARKS = {
    # products on a CPU
    "cpu": "benchmarks.cpu",
    # products on a GPU
    "gpu_calls": "benchmarks.gpu_calls",
    "gpu_complex": "benchmarks.gpu_complex",
    "gpu_emulation": "benchmarks.gpu_emulation",
    "gpu_added": "benchmarks.gpu_added",
    "gpu_host": "benchmarks.gpu_host",
    "jax_products": "benchmarks.jax_products",
    "gram": "benchmarks.gram",
    "portable": "benchmarks.portable",
    # products on both
    "peers": "benchmarks.peers",
    "declines": "benchmarks.declines",
    "threads": "benchmarks.threads",
    "integers": "benchmarks.integers",
    "contractions": "benchmarks.contractions",
    "solvers": "benchmarks.solvers",
    "muon": "benchmarks.muon",
    "stacks": "benchmarks.stacks",
    "solver_errors": "benchmarks.solver_errors",
    "random_shapes": "benchmarks.random_shapes",
    "shortest_paths": "benchmarks.shortest_paths",
    "out_of_core": "benchmarks.out_of_core",
    "distributed": "benchmarks.distributed",
    "dask_arrays": "benchmarks.dask_arrays",
    "training": "benchmarks.training",
    "outside": "benchmarks.outside",
    "programs": "benchmarks.programs.command",
    # choices and models
    "thin": "benchmarks.thin",
    "regret": "benchmarks.regret",
    "tunings": "benchmarks.tunings",
    "replay": "benchmarks.replay",
    "agreement": "benchmarks.agreement",
    "shipped": "benchmarks.shipped",
    "papers": "benchmarks.papers.command",
    # checks and pages
    "gpu_check": "benchmarks.gpu_check",
    "compile_ahead": "benchmarks.compile_ahead",
    "pages": "benchmarks.pages",
    "demo": "benchmarks.demo",
    "scaling": "benchmarks.scaling",
    "notebooks": "benchmarks.notebooks",
}


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark that the first argument names; return its exit code."""
    name, *others = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(f"usage: python -m benchmarks NAME [--help] [OPTION ...]\n\nnames: {', '.join(BENCHMARKS)}")
        return 0
    if name not in BENCHMARKS:
        print(f"benchmarks: no benchmark {name!r}; valid: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    try:
        return int(import_module(BENCHMARKS[name]).main(others))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("benchmarks", "fmm"):
            raise
        print(f"benchmarks {name}: needs {error.name}, which is not installed", file=sys.stderr)
        return 2
    except SlowKernelError as error:
        print(f"benchmarks {name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"benchmarks {name}: interrupted; finished results are written", file=sys.stderr)
        return 128 + 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
