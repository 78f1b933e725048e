"""python -m fmm script.py, python -m fmm -m module: a program as it is, with fmm installed for its libraries.

usage: python -m fmm [--report] [--install NAMES] (script.py | -m module | -c code | -) [arguments of the program]

  --report         at the end, which products ran by plans, how many, how much faster, and which were left alone and why
  --install NAMES  for which libraries, between commas: torch, cupy, numpy (if none is named, those that are here),
                   torch-cpu
"""

from fmm.integrations.run import main

if __name__ == "__main__":
    raise SystemExit(main())
