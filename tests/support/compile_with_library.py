"""Compiles CUDA sources with the NVRTC library of a given path, in a process of its own:

    python -m tests.support.compile_with_library LIBRARY

reads a JSON list of [source, architecture, option, ...] and writes a list of the compiler's errors, "" where there
are none.
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import byref, c_char_p, c_size_t, c_void_p, create_string_buffer
from pathlib import Path

from tests.support.nvrtc import in_parallel


def main(path: str) -> None:
    # NVRTC opens its builtins by their name, and finds the library that is loaded already.
    ctypes.CDLL(str(next(Path(path).parent.glob("libnvrtc-builtins.so*"))), ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(path)

    def errors(source: str, architecture: str, *options: str) -> str:
        program, size = c_void_p(), c_size_t()
        flags = [x.encode() for x in (f"--gpu-architecture={architecture}", *options)]
        assert not library.nvrtcCreateProgram(byref(program), source.encode(), b"kernel.cu", 0, None, None)
        failed = library.nvrtcCompileProgram(program, len(flags), (c_char_p * len(flags))(*flags))
        library.nvrtcGetProgramLogSize(program, byref(size))
        log = create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        library.nvrtcDestroyProgram(byref(program))
        return log.value.decode(errors="replace") if failed else ""

    json.dump(in_parallel(errors, json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
