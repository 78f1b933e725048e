"""Who orders what in tiled products by the copy engine: their source on the host, watched by ThreadSanitizer.

Tools that watch a GPU know barriers, not gates, and report sums that a gate orders. Here every thread is a thread,
every copy is one too, and a gate orders what was done before an arrival and what is done after passing it: no more.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cuda.products.tiled_source import ENTRY
from fmm.kernels.cuda.products.tma import BulkOp
from fmm.kernels.cuda.products.tma_source import BulkKernel
from tests.kernels.cuda.products.test_tiled import COMPILER
from tests.kernels.cuda.products.test_tma import SMALL, check, described, for_the_host

FLAGS = ("-std=c++20", "-O1", "-g", "-w", "-Wno-psabi", "-pthread", "-fsanitize=thread")
# What may be left out: the order that gates of copies or of sums make, a warp's meeting before it arrives, turns.
LEFT_OUT = ("nothing", "copies", "sums", "warps", "turns")
RACE = "WARNING: ThreadSanitizer: data race"
HOST = r"""
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <linux/futex.h>
#include <new>
#include <sys/syscall.h>
#include <unistd.h>

// A wait that orders nothing: ThreadSanitizer knows what libraries do, not this.
static void wait_while(std::atomic<unsigned>& word, unsigned value) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
static void wake_all(std::atomic<unsigned>& word) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

struct Barrier {
    unsigned size;
    std::atomic<unsigned> arrived = 0, times = 0;
    void wait() {
        const unsigned before = times;
        if (++arrived == size) {
            arrived = 0;
            ++times;
            wake_all(times);
        } else {
            while (times == before) wait_while(times, before);
        }
    }
};
constexpr int MOST_WARPS = 8;
struct ThreadBlock {
    alignas(1024) float memory[1 << 16];
    Barrier everyone, warps[MOST_WARPS];
    Dim index;
};
static thread_local ThreadBlock* mine;
#define blockIdx mine->index

// What a test leaves out, one of LEFT_OUT, to see that it is missed.
static int left_out;
static int early;  // so many tiles too early a stage is filled again

static void __syncthreads() { mine->everyone.wait(); }
static void __syncwarp() { if (left_out != WARPS) mine->warps[threadIdx.x / 32].wait(); }
"""
GATES = r"""
namespace fmm {
constexpr auto NO_ORDER = std::memory_order_relaxed;
constexpr int PHASES = 64;
struct Gate {
    std::atomic<unsigned> phase;          // how many have ended. It opens the gate and orders nothing
    std::atomic<long long> missing;       // of this phase: 2^32 for each who is to arrive, and bytes
    std::atomic<int> order[PHASES];       // of each phase alone: released by who arrives, acquired by who passes
    int arrivals;
};
static void make_gate(Gate* g, int arrivals) {
    new (g) Gate();
    g->arrivals = arrivals;
    g->missing = (long long)arrivals << 32;
}
static void show_gates() {}
static void settle(Gate* g, long long come) {
    const unsigned phase = g->phase.load(NO_ORDER);
    if (phase >= PHASES) std::abort();
    g->order[phase].fetch_add(1, std::memory_order_release);
    if (g->missing.fetch_sub(come, NO_ORDER) != come) return;
    g->missing.store((long long)g->arrivals << 32, NO_ORDER);
    g->phase.store(phase + 1, std::memory_order_release);  // nobody acquires it
    wake_all(g->phase);
}
static void arrive(Gate* g) { settle(g, 1LL << 32); }
static void expect(Gate* g, int bytes) { settle(g, (1LL << 32) - bytes); }
static void pass(Gate* g, unsigned parity) {
    unsigned phase;
    while (((phase = g->phase.load(NO_ORDER)) & 1) == parity) wait_while(g->phase, phase);
    if (left_out == (g->arrivals == 1 ? COPIES : SUMS)) return;
    if (phase) g->order[phase - 1].load(std::memory_order_acquire);
}
// The engine: each copy is ordered after its request and before its gate, and with no other copy.
static thread_local std::vector<std::thread> copies;
static void bring(void* to, const Map* m, int x, int y, int z, Gate* g) {
    copies.emplace_back([=] {
        copy(to, m, x, y, z);
        settle(g, 4 * m->across * m->down);
    });
}
template <int THREADS> void meet() { __syncthreads(); }
static void wait_for_turn(const unsigned* count, unsigned turn) {
    std::atomic_ref<unsigned> now(*const_cast<unsigned*>(count));
    while (now.load(left_out == TURNS ? NO_ORDER : std::memory_order_acquire) != turn) std::this_thread::yield();
}
static void pass_turn(unsigned* count, unsigned turn) {
    std::atomic_ref<unsigned>(*count).store(turn, std::memory_order_release);
}
template <int N> void add_there(float* q, const float (&x)[N]) { for (int e = 0; e < N; ++e) q[e] += x[e]; }
}
"""
# Two thread blocks at a time, so that turns are taken. Reads a launch and its arrays, writes C and the counts.
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
# Filling a stage again, as the kernel has it and as a test may have it do.
REFILL = "if (t > 2 && t - 3 + S::STAGES < steps + AHEAD) fill(t - 3 + S::STAGES, free);"
FREE = "free = S::STAGES - 3;"


def run(command: list[str], given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """With addresses as ThreadSanitizer wants them, where the machine chooses others at random."""
    where = ["setarch", "-R"] if shutil.which("setarch") else []
    env = {"TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run([*where, *command], input=given, capture_output=True, env=env, timeout=120)


@cache
def sanitizer() -> str | None:
    """Why no race would be seen here, or None: then one is."""
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
    """What ThreadSanitizer reports."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Runs a launch; kernels are compiled once."""
    if reason := sanitizer():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("races")
    programs: dict[BulkKernel, Path] = {}

    def compiled(kernel: BulkKernel) -> Path:
        path = folder / str(len(programs))
        numbers = f"enum {{ {', '.join(LEFT_OUT).upper()} }};"
        text = numbers + for_the_host(kernel, HOST, GATES)
        for old, new in {
            REFILL: REFILL.replace("t > 2", "t > 2 - early").replace("t - 3", "t - 3 + early"),
            FREE: FREE.replace(";", " + early;"),
            "extern __shared__ __align__(1024) float memory[];": "float* const memory = mine->memory;",
        }.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        driver = DRIVER.format(threads=kernel.strategy.threads, entry=ENTRY)
        path.with_suffix(".cpp").write_text(text + driver, encoding="utf-8")
        subprocess.run([str(COMPILER), *FLAGS, f"{path}.cpp", "-o", str(path)], check=True)
        return path

    def launch(
        op: BulkOp, arrays: dict[str, np.ndarray[Any, Any]], left_out: str = "nothing", early: int = 0
    ) -> tuple[np.ndarray[Any, Any], int]:
        if op.kernel not in programs:
            programs[op.kernel] = compiled(op.kernel)
        names = list(arrays)
        words, pointers = np.frombuffer(op.parameters, np.int64).copy(), []
        for word, x in zip(op.map_words, op.maps, strict=True):
            words[word : word + 9] = described(x, 0)
            pointers.append((word, names.index(x.piece.base)))
        for word, piece in zip(op.dest_words, op.dest, strict=True):
            words[word] = piece.offset
            pointers.append((word, names.index(piece.base)))
        given = [struct.pack("4i", LEFT_OUT.index(left_out), early, op.grid[0], op.turns), words.tobytes()]
        for array in arrays.values():
            given += [struct.pack("q", array.nbytes), array.tobytes()]
        given += [struct.pack("i", len(pointers)), *(struct.pack("2i", *pair) for pair in pointers)]
        done = run([str(programs[op.kernel])], b"".join(given))
        said = done.stderr.decode(errors="replace")
        if RACE in said:
            raise RaceError(said)
        assert done.returncode == 0 and not said, (done.returncode, said)
        c = arrays["C"]
        c[...] = np.frombuffer(done.stdout, c.dtype, c.size).reshape(c.shape)
        return np.frombuffer(done.stdout, np.uint32, op.turns, c.nbytes), 0

    return launch


TILE, LEVEL = "tile", "strassen.fused.pad8 > tile"  # the level: sums of A alone, of B alone, of both, in turns


# Of 6 stages: one step, as many steps, more; of a level 3 and 10.
@pytest.mark.parametrize(
    ("plan", "orders", "inner"),
    [
        (TILE, "CCC", 7),
        (TILE, "CCC", 45),
        (TILE, "CCC", 150),
        (TILE, "FFC", 150),
        (LEVEL, "CCC", 45),
        (LEVEL, "CCC", 150),
    ],
)
def test_gates_order_whatever_threads_share(plan: str, orders: str, inner: int, host: Watched) -> None:
    op = check(plan, (72, inner, 40), orders, (1.0, 0.0), SMALL, host)
    if plan == LEVEL:
        assert op.kernel.shapes == {(True, True), (True, False), (False, True)}
        assert op.kernel.order == "turns"


@pytest.mark.parametrize(
    ("plan", "left_out", "early"),
    [
        *product((TILE, LEVEL), ("copies", "sums", "warps"), [0]),
        (LEVEL, "turns", 0),
        *product((TILE, LEVEL), ["nothing"], [2]),
    ],
)
def test_what_is_not_ordered_is_found(plan: str, left_out: str, early: int, host: Watched) -> None:
    """Each gate without its order, and stages that are filled again too early.

    One tile earlier than they are would do: who arrives at a tile's sums has read the tile AHEAD before it too.
    """
    with pytest.raises(RaceError, match="data race"):
        check(plan, (72, 150, 40), "CCC", (1.0, 0.0), SMALL, partial(host, left_out=left_out, early=early))
