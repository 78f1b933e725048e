"""Run a program with fmm installed into its libraries: `python -m fmm script.py`, `python -m fmm -m module`.

usage: python -m fmm [--report[=FILE]] [--install NAMES] (script.py | -m module | -c code | -) [program's arguments]
       python -m fmm --version [--verbose | --json]

  --report         at exit, which products ran by plans, how many, how much faster, and why the others did not
  --install NAMES  names separated by commas: torch, cupy, numpy, scipy (default: those that are importable),
                   torch-cpu, torch-inductor
  --version        the version; with --verbose or --json all that a bug report needs
"""

from fmm.integrations.run import main

if __name__ == "__main__":
    raise SystemExit(main())
