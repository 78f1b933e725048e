"""Run a program with fmm installed into its libraries: `python -m fmm script.py`, `python -m fmm -m module`.

`python -m fmm --help` prints the options.
"""

from fmm.integrations.run import main

if __name__ == "__main__":
    raise SystemExit(main())
