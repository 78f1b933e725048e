"""Files that fmm writes: regular files are replaced as a whole, everything else that exists is written to."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fmm.config.schema import empty_section
from fmm.config.store import merge_section, write_file
from tests.support import ROOT

posix = pytest.mark.skipif(sys.platform == "win32", reason="pipes, devices and links as POSIX has them")


@posix
def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    write_file(pipe, "text")
    reader.join()
    assert found == [b"text"] and pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


@posix
def test_a_device_stays_a_device(tmp_path: Path) -> None:
    null = Path(os.devnull)
    write_file(null, "text")
    link = tmp_path / "null"
    link.symlink_to(null)
    write_file(link, "text")
    assert null.is_char_device() and link.is_symlink()


@posix
def test_a_full_device_is_an_error() -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("no /dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_file(Path("/dev/full"), "text")


@posix
def test_a_report_to_stdout_follows_what_the_program_printed(tmp_path: Path) -> None:
    """The stream is a plain file here; replacing the file would lose what was printed."""
    if not Path("/dev/stdout").exists():
        pytest.skip("no /dev/stdout")
    code = "from pathlib import Path; from fmm.config.store import write_file\n"
    code += "print('printed', flush=True); write_file(Path('/dev/stdout'), 'report')"
    with open(tmp_path / "out.txt", "w", encoding="utf-8") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, cwd=ROOT)
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "printed\nreport"


@posix
@pytest.mark.parametrize("exists", [True, False])
def test_the_target_of_a_link_is_written(tmp_path: Path, exists: bool) -> None:
    target, link = tmp_path / "dotfiles" / "config.json", tmp_path / "config.json"
    target.parent.mkdir()
    if exists:
        target.write_text("{}", encoding="utf-8")
    link.symlink_to(target)
    write_file(link, "text")
    assert link.is_symlink() and target.read_text(encoding="utf-8") == "text"
    target.unlink()
    merge_section(link, "cpu-x-2t", "float64", empty_section({"numpy": "2"}))
    assert link.is_symlink() and "cpu-x-2t" in target.read_text(encoding="utf-8")


@posix
def test_permissions_are_those_of_the_old_file_or_of_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = os.umask(0o027)
    try:
        # Another thread of the program could create a file while the umask is another.
        monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the umask belongs to the whole process"))
        write_file(tmp_path / "new", "text")
    finally:
        monkeypatch.undo()
        os.umask(old)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    (tmp_path / "new").chmod(0o604)
    write_file(tmp_path / "new", "other")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o604


def test_a_failure_leaves_the_old_content_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    write_file(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(path, "new")
    assert path.read_text(encoding="utf-8") == "old" and list(tmp_path.iterdir()) == [path]


@posix
def test_importing_fmm_in_a_removed_folder(tmp_path: Path) -> None:
    """The report cannot be written to a folder that is gone; the program runs, and one line says so."""
    folder = tmp_path / "gone"
    folder.mkdir()
    code = f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); os.rmdir({str(folder)!r})\n"
    code += "import fmm; print(fmm.__version__)"
    env = {**os.environ, "FMM_REPORT": "r.txt"}
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and ran.stdout.strip() and "Traceback" not in ran.stderr
    assert "the report is not written to 'r.txt'" in ran.stderr
