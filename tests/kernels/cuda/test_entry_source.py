"""The source of an entry point: the lines around the call of a header's function."""

from __future__ import annotations

from fmm.kernels.cuda.device_code.entry_source import (
    ENTRY_NAME,
    entry_point_lines,
    entry_source,
    inline_headers,
    source_with_headers,
)

HEADER = "nonfinite_flag.cuh"


def test_lines_are_indented_and_directives_are_not() -> None:
    body = ("int x = 1;", "#if X", "call(p);", "#endif")
    assert entry_point_lines("Told", body, (256, "2"), clusters=4, entry="name") == (
        'extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(256, 2)',
        "name(const __grid_constant__ Told p) {",
        "    int x = 1;",
        "#if X",
        "    call(p);",
        "#endif",
        "}",
    )


def test_one_call_is_on_the_line_of_its_entry_point() -> None:
    assert entry_point_lines("Told", "call(p);", (32,)) == (
        'extern "C" __global__ void __launch_bounds__(32)',
        f"{ENTRY_NAME}(const __grid_constant__ Told p) {{ call(p); }}",
    )


def test_the_header_comes_first_then_the_preceding_lines() -> None:
    source = entry_source("Told", "call(p);", HEADER, (32,), before=("struct Told {};",))
    lines = ["struct Told {};", *entry_point_lines("Told", "call(p);", (32,))]
    assert source == source_with_headers(HEADER, lines)
    assert source == inline_headers(f'#include "{HEADER}"\n') + "\n" + "\n".join(lines) + "\n"
