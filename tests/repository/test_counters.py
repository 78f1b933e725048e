"""Nsight Compute's CSV and what is made of it, from text that looks like a recorded run."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from benchmarks import counters, ncu
from fmm.kernels.algorithms.step_table import kernel_table
from fmm.kernels.cuda.products.kernel_sizes import GPU8, named_strategy
from fmm.perfmodel.papers import li_counts

LONG = """==PROF== Connected to process 4242 (/usr/bin/python3.12)
==PROF== Profiling "fmm_sum" - 0: 0%....50%....100% - 3 passes
==PROF== Disconnected from process 4242
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"Section Name","Metric Name","Metric Unit","Metric Value"
"0","4242","python3.12","127.0.0.1","fmm_sum","1","7","(128, 1, 1)","(2, 1024, 1)","0","9.0",\
"Command line profiler metrics","dram__bytes_read.sum","byte","8,392,704"
"0","4242","python3.12","127.0.0.1","fmm_sum","1","7","(128, 1, 1)","(2, 1024, 1)","0","9.0",\
"Command line profiler metrics","l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum","sector","262,144"
"0","4242","python3.12","127.0.0.1","fmm_sum","1","7","(128, 1, 1)","(2, 1024, 1)","0","9.0",\
"Command line profiler metrics","l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts.sum","","n/a"
"10","4242","python3.12","127.0.0.1","fmm_tile","1","7","(128, 1, 1)","(512, 1, 1)","0","9.0",\
"Command line profiler metrics","dram__bytes_read.sum","Mbyte","12.5"
"2","4242","python3.12","127.0.0.1","fmm_tile","1","7","(128, 1, 1)","(512, 1, 1)","0","9.0",\
"Command line profiler metrics","dram__bytes_read.sum","byte","0"
"""
WIDE = """"ID","Process ID","Kernel Name","Block Size","dram__bytes_read.sum","lts__t_sectors_op_read.sum"
"","","","","Kbyte","sector"
"0","4242","fmm_sum","(128, 1, 1)","8392.704","262144"
"1","4242","fmm_tile","(128, 1, 1)","1.5e3","12"
"""


def test_a_line_for_every_metric() -> None:
    first, second, third = ncu.launches(LONG)
    assert first == ncu.Launch(
        "fmm_sum",
        {"dram__bytes_read.sum": 8392704, "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 262144},
    )
    assert second.counters == {"dram__bytes_read.sum": 0}
    assert third.counters == {"dram__bytes_read.sum": 12.5e6}  # launches in the order of the run


def test_a_line_for_every_launch() -> None:
    assert ncu.launches(WIDE) == [
        ncu.Launch("fmm_sum", {"dram__bytes_read.sum": 8392704, "lts__t_sectors_op_read.sum": 262144}),
        ncu.Launch("fmm_tile", {"dram__bytes_read.sum": 1500000, "lts__t_sectors_op_read.sum": 12}),
    ]


@pytest.mark.parametrize("text", ["", "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n"])
def test_no_csv_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="no CSV"):
        ncu.launches(text)


FAKE = """#!/bin/sh
while [ "$1" != --metrics ]; do shift; done
case "$2" in *unheard*) echo "==ERROR== Failed to find metric unheard.sum"; exit 1;; esac
echo "$2" > "$4"
"""


def test_a_metric_that_is_unknown_is_left_out(tmp_path: Path) -> None:
    fake = tmp_path / "ncu"
    fake.write_text(FAKE, encoding="utf-8")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    assert ncu.profiled(str(fake), ["true"], ["known.sum", "unheard.sum"], 10).split() == ["known.sum"]


# ---- predicted and measured

SIZE = 512


def recorded(wrong: dict[str, float] | None = None) -> list[ncu.Launch]:
    """A run in which the device moves what the model says; `wrong`: factors of a kernel's loads."""
    found = []
    for plan in counters.plans():
        m, block = SIZE // 2 if plan.levels else SIZE, named_strategy(plan.leaf.partition(".")[2])
        for name in counters.calls(plan):
            kernel = kernel_table()[name]
            stored = 4 * m * m * len(kernel.writes) // 32
            read = 4 * m * m * len(kernel.reads) // 32
            copied = (4 * m**3 // block.m_s + 4 * m**3 // block.n_s) // 32 if kernel.product else 0
            loaded = read * (wrong or {}).get(name, 1)
            sectors = {counters.COPIED: copied, counters.LOADED: loaded, counters.STORED: stored}
            memory = {counters.FROM_DRAM: 1e6, counters.TO_DRAM: 5e5, counters.READ: 7.0, counters.WRITTEN: 1.0}
            found.append(ncu.Launch("fmm_tile" if kernel.product else "fmm_sum", sectors | memory))
    return found


def test_all_ten_kernels_are_compared() -> None:
    rows = counters.compared(recorded(), SIZE)
    for leaf in counters.TILES:
        names = {x.kernel for x in rows if x.plan.endswith(leaf)}
        multiplying = {name for name in kernel_table() if name.startswith("mul")} - {"mulInc"}  # R-Kleene's, not Li's
        assert names == {"add", "sub", *multiplying}
    assert all(x.moved == x.volume for x in rows)
    assert all(x.transactions == x.expected for x in rows)
    assert [x.times for x in rows if x.kernel == "mul"] == [2, 3, 1, 2, 3, 1]
    assert {(x.memory, x.second) for x in rows} == {(1.5e6, 256.0)}


def test_predictions_of_gpu8_are_the_printed_ones() -> None:
    """Figure 11, and for all calls of a plan Figure 14."""
    rows = counters.compared(recorded(), SIZE)
    for x in rows:
        if x.plan.endswith("gpu8"):
            kernel = kernel_table()[x.kernel]
            for quantity, found in (("transactions", x.printed), ("volume", x.volume)):
                leaf = li_counts.LEAVES["gpu8"][quantity]  # type: ignore[index]
                assert found == li_counts.kernel_cost(kernel, quantity, leaf)(x.m)  # type: ignore[arg-type]
    for plan, scheme in (("li-fig12 > tile.gpu8", "strassen"), ("li-fig13 > tile.gpu8", "winograd")):
        whole = counters.total([x for x in rows if x.plan == plan])
        assert whole.printed == float(li_counts.T(scheme, 1, SIZE)) and whole.volume == float(
            li_counts.V(scheme, 1, SIZE)
        )
    other = [x for x in rows if x.plan.endswith("square")]
    assert all(x.printed is None and x.transactions is None for x in (*other, counters.total(other)))
    assert {x.volume for x in other if x.plan == "tile.square"} == {8 * SIZE**3 / 128 + 4 * SIZE**2}
    assert GPU8.threads == 128


def test_the_table_shows_what_differs() -> None:
    text = counters.table(counters.compared(recorded({"mulAdd": 1.5}), SIZE))
    lines = [line.split() for line in text.splitlines()]
    (row,) = (x for x in lines[: lines.index([])] if x[:1] == ["mulIncInc"])
    assert row[6] == row[9] == "1.000"
    changed = [x for x in lines if x[:1] == ["mulAdd"]]
    assert len(changed) == 2 and all(float(x[-4]) > 1 for x in changed)


def test_another_run_is_refused() -> None:
    found = recorded()
    with pytest.raises(ValueError, match="65 launches where the plans have 66"):
        counters.compared(found[1:], SIZE)
    with pytest.raises(ValueError, match=r"call 2 of li-fig12 > tile\.gpu8 is mul, but the launch is fmm_sum"):
        counters.compared([*found[:2], found[0], *found[3:]], SIZE)
