"""Memory order in tiled products by the copy engine: their source on the host, checked by ThreadSanitizer."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME
from fmm.kernels.cuda.products.tma_tiles import TmaKernel, TmaOp
from tests.support.host_compiler import COMPILER, compiled_file, header
from tests.support.marks import quick_and_slow
from tests.support.tma_on_host import SMALL, check, described, for_the_host

FLAGS = ("-std=c++20", "-O1", "-g", "-w", "-Wno-psabi", "-pthread", "-fsanitize=thread")
# Order that a test can leave out: of the barriers of copies or of sums, of a warp before it arrives, of turns.
LEFT_OUT = ("nothing", "copies", "sums", "warps", "turns")
RACE = "WARNING: ThreadSanitizer: data race"
# Two thread blocks at a time, so that tasks wait for turns. Reads a launch and its arrays, writes C and the counters.
DRIVER = r"""
static std::vector<char> taken(size_t size) {{
    std::vector<char> bytes(size);
    if (fread(bytes.data(), 1, size, stdin) != size) std::abort();
    return bytes;
}}
template <class T> T number() {{
    T x;
    memcpy(&x, taken(sizeof x).data(), sizeof x);
    return x;
}}
int main() {{
    left_out = number<int>(), early = number<int>();
    const int blocks = number<int>(), turns = number<int>();
    const auto words = taken(sizeof(Launch));
    Launch& p = *new Launch;
    memcpy(static_cast<void*>(&p), words.data(), sizeof p);
    char* arrays[3];
    size_t sizes[3];
    for (int i = 0; i < 3; ++i) {{
        sizes[i] = number<long long>();
        arrays[i] = static_cast<char*>(std::aligned_alloc(64, (sizes[i] + 63) / 64 * 64));
        memcpy(arrays[i], taken(sizes[i]).data(), sizes[i]);
    }}
    // Where the arrays are: added to words that hold offsets.
    for (int pointers = number<int>(); pointers; --pointers) {{
        const int word = number<int>(), array = number<int>();
        reinterpret_cast<long long*>(&p)[word] += reinterpret_cast<long long>(arrays[array]);
    }}
    std::vector<unsigned> counts(turns);
    p.turns = counts.data();
    static ThreadBlock at_once[2];
    static std::atomic<unsigned> next = 0;
    std::vector<std::thread> threads;
    for (ThreadBlock& block : at_once) {{
        block.everyone.size = {threads};
        for (Barrier& warp : block.warps) warp.size = 32;
        for (unsigned t = 0; t < {threads}; ++t)
            threads.emplace_back([&, t] {{
                mine = &block;
                threadIdx = {{t, 0, 0}};
                for (;;) {{
                    if (t == 0) block.index = {{next.fetch_add(1, std::memory_order_relaxed), 0, 0}};
                    __syncthreads();
                    if (block.index.x >= blocks) return;
                    {entry}(p);
                    __syncthreads();
                    for (std::thread& copy : fmm::copies) copy.join();
                    fmm::copies.clear();
                }}
            }});
    }}
    for (std::thread& t : threads) t.join();
    fwrite(arrays[2], 1, sizes[2], stdout);
    fwrite(counts.data(), 4, turns, stdout);
}}
"""
# The kernel's code that fills a stage again, which a test may change to fill it too early.
REFILL = "if (t > 2 && t - 3 + S::STAGES < steps + AHEAD) fill(t - 3 + S::STAGES, free);"
FREE = "free = S::STAGES - 3;"


def run(command: list[str], data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Return the command with the address layout that ThreadSanitizer needs, where the machine randomizes addresses."""
    where = ["setarch", "-R"] if shutil.which("setarch") else []
    env = {"TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run([*where, *command], input=data, capture_output=True, env=env, timeout=120)


@cache
def sanitizer() -> str | None:
    """Return why no race would be seen here; None if one is seen."""
    if COMPILER is None:
        return "no C++ compiler (g++ or clang++) for the kernel's source on the host"
    racy = "#include <thread>\nint x; int main() { std::thread t([] { x = 1; }); x = 2; t.join(); }\n"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "racy"
        path.with_suffix(".cpp").write_text(racy, encoding="utf-8")
        made = subprocess.run([COMPILER, *FLAGS, f"{path}.cpp", "-o", str(path)], capture_output=True, text=True)
        said = made.stderr if made.returncode else run([str(path)]).stderr.decode(errors="replace")
    return None if RACE in said else f"no ThreadSanitizer: {said.strip()[-300:]}"


Watched = Callable[..., tuple[np.ndarray[Any, Any], int]]


class RaceError(Exception):
    """Return ThreadSanitizer's report."""


@pytest.fixture(scope="module")
def host() -> Watched:
    """Runs a launch."""
    if reason := sanitizer():
        pytest.skip(reason)

    @cache
    def compiled(kernel: TmaKernel) -> Path:
        numbers = f"enum {{ {', '.join(LEFT_OUT).upper()} }};\n"
        text = numbers + for_the_host(kernel, header("watched_barriers.h"), header("watched_mbarriers.h"))
        for old, new in {
            REFILL: REFILL.replace("t > 2", "t > 2 - early").replace("t - 3", "t - 3 + early"),
            FREE: FREE.replace(";", " + early;"),
            "extern __shared__ __align__(1024) float memory[];": "float* const memory = mine->memory;",
        }.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        driver = DRIVER.format(threads=kernel.strategy.thread_count, entry=ENTRY_NAME)
        return compiled_file("races", text + driver, FLAGS)

    def launch(
        op: TmaOp, arrays: dict[str, np.ndarray[Any, Any]], left_out: str = "nothing", early: int = 0
    ) -> tuple[np.ndarray[Any, Any], int]:
        names = list(arrays)
        words, pointers = np.frombuffer(op.parameter_bytes, np.int64).copy(), []
        for word, x in zip(op.tensor_map_word_indices, op.maps, strict=True):
            words[word : word + 9] = described(x, 0)
            pointers.append((word, names.index(x.piece.base)))
        for word, piece in zip(op.dest_word_indices, op.dest, strict=True):
            words[word] = piece.offset
            pointers.append((word, names.index(piece.base)))
        words_in = [
            struct.pack("4i", LEFT_OUT.index(left_out), early, op.grid[0], op.ordering_counter_count),
            words.tobytes(),
        ]
        for array in arrays.values():
            words_in += [struct.pack("q", array.nbytes), array.tobytes()]
        words_in += [struct.pack("i", len(pointers)), *(struct.pack("2i", *pair) for pair in pointers)]
        done = run([str(compiled(op.kernel))], b"".join(words_in))
        said = done.stderr.decode(errors="replace")
        if RACE in said:
            raise RaceError(said)
        assert done.returncode == 0 and not said, (done.returncode, said)
        c = arrays["C"]
        c[...] = np.frombuffer(done.stdout, c.dtype, c.size).reshape(c.shape)
        return np.frombuffer(done.stdout, np.uint32, op.ordering_counter_count, c.nbytes), 0

    return launch


TILE, LEVEL = "tile", "strassen.fused.pad8 > tile"  # the level: sums of A alone, of B alone, of both, in turns


# For 6 stages: one step, six steps, more; for a level 3 and 10.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "orders", "inner"),
    quick_and_slow(
        [(TILE, "CCC", 45), (LEVEL, "CCC", 45)],
        [(TILE, "CCC", 7), (TILE, "CCC", 150), (TILE, "FFC", 150), (LEVEL, "CCC", 150)],
    ),
)
def test_barriers_order_all_shared_data(plan: str, orders: str, inner: int, host: Watched) -> None:
    op = check(plan, (72, inner, 40), orders, (1.0, 0.0), SMALL, host)
    if plan == LEVEL:
        assert op.kernel.shapes == {(True, True), (True, False), (False, True)}
        assert op.kernel.order == "turns"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("plan", "left_out", "early"),
    quick_and_slow(
        [(TILE, "copies", 0), (LEVEL, "sums", 0), (TILE, "warps", 0), (LEVEL, "turns", 0), (LEVEL, "nothing", 2)],
        [(LEVEL, "copies", 0), (TILE, "sums", 0), (LEVEL, "warps", 0), (TILE, "nothing", 2)],
    ),
)
def test_missing_order_is_found(plan: str, left_out: str, early: int, host: Watched) -> None:
    """Each barrier without its memory order, and stages that are filled again too early."""
    with pytest.raises(RaceError, match="data race"):
        check(plan, (72, 150, 40), "CCC", (1.0, 0.0), SMALL, partial(host, left_out=left_out, early=early))
