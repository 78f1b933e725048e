"""Device facts agree with themselves and with datasheets; occupancy agrees with NVIDIA's calculator."""

import pytest

from fmm.hardware.datasheets import capability_limits, capability_names, datasheet_names, datasheet_of
from fmm.hardware.occupancy import BlockResources, count_active_blocks, launch_occupancy, max_registers, register_range
from fmm.perfmodel.papers.table import PaperTable


@pytest.mark.parametrize("spelling", ["h200", "H200", " h 200 ", "h-200"])
def test_device_by_any_spelling(spelling: str) -> None:
    assert datasheet_of(spelling).name == "H200"


@pytest.mark.parametrize("spelling", ["RTX 4090", "rtx4090", "rtx_4090"])
def test_device_of_two_words(spelling: str) -> None:
    assert datasheet_of(spelling).name == "RTX 4090"


def test_unknown_device_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"unknown device 'h300'.*C1060.*H200.*RTX 5090"):
        datasheet_of("h300")


def test_unknown_capability_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"unknown compute capability '3\.5'.*1\.3.*12\.0"):
        capability_limits("3.5")


def test_the_devices_are_those_of_the_papers_and_today() -> None:
    papers = {"C1060", "C2050", "GTX 1050", "V100"}
    ampere_ada = {"A100", "A100 40GB", "A30", "A10", "RTX 3090", "L4", "L40S", "RTX 4090"}
    hopper = {"H100", "H100 PCIe", "H100 NVL", "H800", "H20", "GH200", "GH200 144G", "H200"}
    blackwell = {"B100", "B200", "B300", "RTX 5090", "RTX PRO 6000", "GB10", "Thor"}
    assert set(datasheet_names()) == papers | ampere_ada | hopper | blackwell


def test_capabilities_of_the_table() -> None:
    expected = {"1.3", "2.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"}
    assert expected <= set(capability_names())


# Devices with fewer flops in float64 than their cores have, by contract or by design.
LIMITED_FP64 = ("H800", "H20", "B300")
# The listed float32 rate of an H20 is more than its multiprocessors have at an H100's clock.
UNEXPLAINED_FP32 = ("H20",)


@pytest.mark.parametrize("name", datasheet_names())
def test_printed_peaks_are_cores_times_clock(name: str) -> None:
    """A typing error in SMs, clock, cores or peak shows here."""
    gpu = datasheet_of(name)
    if name not in UNEXPLAINED_FP32:
        assert gpu.fp32_peak_flops == pytest.approx(1e12 * gpu.fp32_tflops, rel=0.01)
    if gpu.fp64_tflops is not None and name not in LIMITED_FP64:
        assert gpu.fp64_peak_flops == pytest.approx(1e12 * gpu.fp64_tflops, rel=0.012)
    assert gpu.source and gpu.capability_limits.source


@pytest.mark.parametrize("name", datasheet_names())
def test_units_of_the_datasheet_columns(name: str) -> None:
    gpu = datasheet_of(name)
    assert 50 < gpu.bandwidth_gbs < 20_000
    assert 1 < gpu.memory_gb < 1000
    assert not gpu.l2_kib or 256 <= gpu.l2_kib < 1_000_000
    assert gpu.fp16_tflops is None or gpu.fp16_tflops > gpu.fp32_tflops
    for number in ("fp64_tflops", "l2_kib"):
        assert getattr(gpu, number) is not None or "left out" in gpu.source


@pytest.mark.parametrize("name", [x for x in datasheet_names() if datasheet_of(x).int8_tops])
def test_bytes_are_multiplied_twice_as_fast_as_float16_or_faster_on_cards_that_halve_it(name: str) -> None:
    """GeForce cards halve float16 with float32 accumulation; a B300 has almost no integer tensor cores."""
    gpu = datasheet_of(name)
    assert gpu.int8_tops is not None and gpu.fp16_tflops is not None
    times = 4 if name.startswith("RTX") and "PRO" not in name else 150 / 2250 if name == "B300" else 2
    assert gpu.int8_tops == pytest.approx(times * gpu.fp16_tflops, rel=0.02)


def test_the_cards_of_the_papers_have_the_facts_that_the_papers_state() -> None:
    """Li et al., section 2: 622 Gflop/s by multiply-adds alone, and 1.03 Tflop/s; Sforza, section 3: 4 GB."""
    c1060, c2050, gtx = map(datasheet_of, ("C1060", "C2050", "GTX 1050"))
    assert c1060.fp32_tflops == 0.622 and c1060.memory_gb == 4
    assert c1060.fp32_peak_flops == pytest.approx(240 * 2 * 1296e6)  # 240 cores, two flops each
    assert (c2050.fp32_tflops, c2050.fp64_tflops, c2050.memory_gb) == (1.03, 0.515, 3)
    assert gtx.memory_gb == 4


RELATIVES = ("H100 PCIe", "H100 NVL", "H800", "H20", "GH200", "GH200 144G")


def test_relatives_have_the_capability_of_the_measured_device() -> None:
    assert {name for name in datasheet_names() if datasheet_of(name).relative_of} == set(RELATIVES)
    for name in RELATIVES:
        assert datasheet_of(datasheet_of(name).relative_of).capability == datasheet_of(name).capability


def test_peak_by_element_size() -> None:
    gpu = datasheet_of("v100")
    assert (gpu.peak_flops(4), gpu.peak_flops(8)) == (gpu.fp32_peak_flops, gpu.fp64_peak_flops)
    with pytest.raises(ValueError, match="elements of 2 bytes; the sizes are 4 and 8"):
        gpu.peak_flops(2)


def test_shared_bandwidth_is_footnote_13_of_huang() -> None:
    assert datasheet_of("v100").shared_memory_bandwidth == pytest.approx(80 * 32 * 4 * 1530e6)


@pytest.mark.parametrize("name", capability_names())
def test_limits_are_consistent(name: str) -> None:
    limits = capability_limits(name)
    assert limits.max_threads_per_block <= limits.max_threads_per_sm
    assert limits.shared_per_block + limits.reserved_shared_per_block <= limits.shared_per_sm
    assert limits.registers_per_block <= limits.registers_per_sm
    assert limits.register_granularity in ("warp", "block")
    assert limits.registers_per_sm % (limits.register_unit * limits.warp_granularity) == 0


# Capability, threads, registers, shared bytes, active blocks. From 6.1 on the blocks are what NVIDIA's own
# cuda_occupancy.h (CUDA 13) answers with the largest carve-out and the opt-in limit; older ones are worked
# out in the comments.
OCCUPANCY = [
    ("1.3", 256, 16, 4096, 4),  # 8 warps x 16 x 32 = 4096 of 16384 registers
    ("1.3", 96, 20, 0, 6),  # 3 warps count as 4: 2560 registers; 6 fit
    ("1.3", 64, 10, 8193, 1),  # 8193 B become 8704
    ("1.3", 512, 33, 0, 0),  # 16896 registers
    ("1.3", 513, 8, 0, 0),  # a block has at most 512 threads
    ("1.3", 32, 8, 0, 8),  # 8 blocks
    ("2.0", 256, 20, 0, 6),  # 1536 threads
    ("2.0", 256, 63, 0, 2),  # 2016 -> 2048 per warp: 16 warps
    ("2.0", 64, 16, 0, 8),  # 8 blocks
    ("2.0", 192, 32, 24577, 1),  # 24577 -> 24704 of 49152 bytes
    ("6.1", 64, 16, 0, 32),
    ("6.1", 256, 128, 0, 2),
    ("6.1", 96, 168, 0, 4),
    ("6.1", 128, 32, 49152, 2),
    ("6.1", 128, 32, 49153, 0),  # no opt-in before Volta
    ("7.0", 64, 40, 2048, 24),
    ("7.0", 64, 41, 2048, 20),  # registers of a thread are allocated in eights ...
    ("7.0", 64, 48, 2048, 20),
    ("7.0", 64, 56, 2048, 18),  # ... and whole warps fill each quarter of an SM: 36, not 37
    ("7.0", 256, 128, 8192, 2),
    ("7.0", 256, 129, 8192, 1),
    ("7.0", 64, 32, 3072, 32),
    ("7.0", 64, 32, 3073, 29),  # shared memory is allocated in units of 256 bytes
    ("7.0", 1024, 64, 0, 1),
    ("7.0", 1024, 65, 0, 0),
    ("7.0", 32, 16, 98304, 1),
    ("7.5", 256, 64, 16384, 4),
    ("7.5", 64, 16, 0, 16),
    ("7.5", 96, 40, 20000, 3),
    ("8.0", 256, 128, 8192, 2),
    ("8.0", 128, 64, 54000, 3),  # 1 KiB of each block's shared memory is the system's
    ("8.0", 64, 32, 4096, 32),
    ("8.0", 64, 32, 166912, 1),
    ("8.0", 64, 32, 166913, 0),
    ("8.6", 128, 46, 4096, 10),
    ("8.6", 672, 48, 0, 1),
    ("8.6", 64, 24, 0, 16),
    ("8.9", 128, 48, 1792, 10),
    ("8.9", 64, 48, 1792, 20),
    ("8.9", 160, 72, 30000, 3),
    ("9.0", 256, 128, 8192, 2),
    ("9.0", 384, 168, 232448, 1),
    ("9.0", 288, 72, 40000, 3),
    ("9.0", 100, 37, 1000, 12),
    ("9.0", 64, 24, 0, 32),
    ("10.0", 64, 24, 0, 32),
    ("10.0", 256, 96, 65536, 2),
    ("10.0", 1024, 32, 0, 2),
    ("12.0", 256, 128, 50000, 2),
    ("12.0", 64, 40, 3000, 24),
]


@pytest.mark.parametrize(("name", "threads", "registers", "shared", "blocks"), OCCUPANCY)
def test_active_blocks(name: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    assert count_active_blocks(capability_limits(name), threads, registers, shared) == blocks


@pytest.mark.parametrize("name", capability_names())
def test_more_of_anything_never_gives_more_blocks(name: str) -> None:
    limits = capability_limits(name)
    for threads in (32, 96, 256, 480):
        by_registers = [count_active_blocks(limits, threads, r) for r in range(1, 256)]
        by_shared = [count_active_blocks(limits, threads, 16, s) for s in range(0, limits.shared_per_sm, 1111)]
        assert by_registers == sorted(by_registers, reverse=True)
        assert by_shared == sorted(by_shared, reverse=True)


def test_what_limits_occupancy() -> None:
    found = launch_occupancy(capability_limits("7.0"), BlockResources(threads=256, registers=128, shared_bytes=8192))
    assert (found.active_block_count, found.limiting_resources) == (2, ("registers",))
    assert (found.by_threads, found.by_blocks, found.by_shared) == (8, 32, 12)


@pytest.mark.parametrize(("threads", "blocks"), [(64, 24), (64, 18), (256, 2), (256, 8), (256, 7)])
def test_register_counts_is_the_inverse_of_active_blocks(threads: int, blocks: int) -> None:
    limits = capability_limits("7.0")
    found = register_range(limits, threads, 2048, blocks)
    every = [r for r in range(1, 256) if count_active_blocks(limits, threads, r, 2048) == blocks]
    assert list(found) == every


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8])
def test_most_registers_is_the_edge(blocks: int) -> None:
    limits = capability_limits("9.0")
    edge = max_registers(limits, 256, blocks)
    assert count_active_blocks(limits, 256, edge) >= blocks
    assert edge == limits.max_registers_per_thread or count_active_blocks(limits, 256, edge + 1) < blocks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 32, 0), "threads per block"), ((32, -1, 0), "registers"), ((32, 32, -1), "shared memory")],
)
def test_nonsense_launches_are_refused(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        count_active_blocks(capability_limits("9.0"), *arguments)


def test_table_refuses_ragged_rows_and_unknown_columns() -> None:
    with pytest.raises(ValueError, match="does not fit the columns"):
        PaperTable("t", "T", ("a", "b"), ((1, 2), (3,)))
    table = PaperTable("t", "T", ("a", "b"), ((1, 2), (3, 4)))
    assert table.column_cells("b") == (2, 4)
    with pytest.raises(ValueError, match="no column 'c'; it has a, b"):
        table.column_cells("c")
