"""python -m fmm against Python itself: the same output, the same traceback, the same status, of programs that look
closely at how they are run."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.marks import quick_and_slow

LOOKS = """
import os, pickle, sys, threading, time
me = sys.modules["__main__"]
print(sorted(vars()), __name__, __file__, __package__, __spec__, __doc__, type(__loader__).__name__, __annotations__)
print(vars(me) is globals(), me.__file__, sys.argv, sys.path[:2], os.environ.get("PYTHONPATH"))
x: int = 3
def product(): return "pickled"
assert pickle.loads(pickle.dumps(product)) is product
def later():
    main.join()
    print("after the end:", pickle.loads(pickle.dumps(product))(), vars(sys.modules["__main__"]) is globals())
main = threading.current_thread()
thread = threading.Thread(target=later)
thread.start()
import atexit
atexit.register(lambda: print("at exit:", sys.modules["__main__"].product(), sys.exc_info()))
os.chdir("/")
print(open(__file__).read()[:20])
def fails(): raise LookupError("as ever")
try:
    1 / 0
except ZeroDivisionError:
    fails()
"""
HOOK = """
import sys
sys.excepthook = lambda kind, value, trace: print("hooked", kind.__name__, value, trace.tb_frame.f_code.co_name)
raise ValueError("seen")
"""
PROCESSES = """
import multiprocessing, sys
def work(x): return x * x, __name__, sys.argv[1:]
if __name__ == "__main__":
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(work, [1, 2]))
    child = multiprocessing.get_context("fork").Process(target=sys.exit, args=(7,))
    child.start(); child.join(); print(child.exitcode)
"""
FILES = {
    "looks.py": LOOKS,
    "hook.py": HOOK,
    "processes.py": PROCESSES,
    "wrong.py": "x = 1\nx = = 2\n",
    "interrupted.py": "raise KeyboardInterrupt\n",
    "ends.py": "import sys\nsys.exit('said at the end')\n",
    "three.py": "raise SystemExit(3)\n",
    "coded.py": "# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n",
    "package/__init__.py": "",
    "package/__main__.py": "import sys\nprint(__package__, __spec__.name, sys.argv[1:], sys.path[0])\n1 / 0",
    "package/part.py": "print(__name__, __spec__.name)\nimport package.missing\n",
    "debugged.py": "x = 4\nbreakpoint()\nprint('went on', x)\n",
    "future.py": "def f(x: undefined_name): ...\n",
}

CASES = {
    "looks": (["looks.py", "-m", "--report"], ""),
    "hook": (["hook.py"], ""),
    "processes": (["processes.py", "one"], ""),
    "wrong": (["wrong.py"], ""),
    "interrupted": (["interrupted.py"], ""),
    "ends": (["ends.py"], ""),
    "three": (["three.py"], ""),
    "coded": (["coded.py"], ""),
    "a package": (["-m", "package", "a", "-m"], ""),
    "a module": (["-m", "package.part"], ""),
    "no module": (["-m", "no_such_module"], ""),
    "no file": (["no_such_file.py"], ""),
    "a folder": (["folder", "x"], ""),
    "an archive": (["archive.zip", "x"], ""),
    "compiled": (["compiled.pyc"], ""),
    "stdin": (["-", "a"], "import sys\nprint(__name__, sys.argv, repr(sys.path[0]), sorted(vars()))\n1 / 0\n"),
    "text": (["-c", "import sys; print(sys.argv, repr(sys.path[0]), sorted(vars()))", "-x", "-c"], ""),
    "text joined": (["-cimport sys; print(sys.argv)", "-m"], ""),
    "a module joined": (["-mpackage", "-c"], ""),
    "pdb inside": (["debugged.py"], "p x\nc\n"),
    "pdb": (["-m", "pdb", "debugged.py"], "n\np x\nc\nc\nq\n"),
    "future": (["future.py"], ""),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("programs")
    for name, text in FILES.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(text, encoding="latin-1")
    (made / "folder").mkdir()
    (made / "folder" / "__main__.py").write_text("import sys\nprint(sys.argv, sys.path[0], __name__)\n")
    with zipfile.ZipFile(made / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", "import sys\nprint(sys.argv, sys.path[0], __name__)\n")
    compileall.compile_file(made / "three.py", quiet=1, legacy=True)
    (made / "three.pyc").rename(made / "compiled.pyc")
    return made


def outcome(folder: Path, before: list[str], case: str) -> tuple[int, str, str]:
    arguments, given = CASES[case]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FMM_TUNING_MODE": "off", "FMM_INSTALL": ""}
    command = [sys.executable, *before, *arguments]
    done = subprocess.run(command, cwd=folder, env=env, input=given, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", quick_and_slow(["looks"], [case for case in CASES if case != "looks"]))
def test_a_program_does_what_it_does_by_itself(case: str, folder: Path) -> None:
    expected = outcome(folder, [], case)
    assert outcome(folder, ["-m", "fmm", "--install", "numpy"], case) == expected
    assert expected != (0, "", "")


@pytest.mark.slow
def test_a_path_that_is_not_to_be_searched_is_not(folder: Path) -> None:
    arguments = ["-P", "-c", "import sys; print(sys.path[0])"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FMM_INSTALL": ""}
    (folder / "first.py").write_text("import sys; print(sys.path[0])")
    for more in (["first.py"], ["-c", arguments[-1]]):
        found = [
            subprocess.check_output([sys.executable, "-P", *before, *more], cwd=folder, env=env, text=True)
            for before in ([], ["-m", "fmm", "--install", "numpy"])
        ]
        assert found[0] == found[1]


@pytest.mark.slow
def test_a_report_comes_last_and_once(folder: Path) -> None:
    """After what threads do when the program's own lines have ended, and not from a process that was forked off."""
    (folder / "counted.py").write_text(
        "import os, sys, threading, time, numpy as np\n"
        "def later():\n    time.sleep(0.2); np.matmul(np.ones((4, 5)), np.ones((5, 6)))\n"
        "threading.Thread(target=later).start()\n"
        "if os.fork() == 0:\n    sys.exit(0)\n"
        "os.wait()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FMM_TUNING_MODE": "off", "FMM_INSTALL": ""}
    command = [sys.executable, "-m", "fmm", "--install", "numpy", "--report", "counted.py"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    assert done.stderr.count("fmm: ") == 1 and "0 of 1 products ran by plans" in done.stderr
