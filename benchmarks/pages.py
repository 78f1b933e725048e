"""Write the measured numbers of README.md and docs/ from results/: `python -m benchmarks pages [--check] [--figure]`.

A page marks the place of a table with `<!-- results: NAME -->` and `<!-- end -->`; the command replaces the text
between them. Long tables are written to results/tables/NAME.csv too, and the recording of fmm-tune to docs/demo.svg.
--figure also draws the figures (matplotlib).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import demo
from benchmarks.harness import RESULTS, ROOT
from benchmarks.tables import devices, everywhere, products, readme, shortest, tunings, unseen_shapes

MARK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
SectionLines = Callable[[Path], Iterator[str]]
SECTIONS: dict[str, SectionLines] = {
    make.__name__: make
    for make in (
        *(readme.example_block, readme.product_shortlist, readme.peer_sentence),
        *products.SECTIONS,
        unseen_shapes.held_out_choices,
        *(tunings.tuned_device, tunings.explained_product),
        *(
            everywhere.several_gpus,
            everywhere.contraction_speedups,
            everywhere.stack_speedups,
            everywhere.muon_speedups,
            everywhere.solver_speedups,
            everywhere.random_solver_speedups,
            everywhere.tall_qr_speedups,
            everywhere.solver_family_errors,
            everywhere.unchanged_programs,
            everywhere.programs_of_others,
            everywhere.jax_speedups,
            everywhere.outside_tests,
        ),
        *(devices.device_kernels, devices.predicted_speedups, devices.portable_speedups),
        *(shortest.ring_products, shortest.minplus_bound, shortest.minplus_products),
        *(shortest.shortest_paths, shortest.paths_on_cpu, shortest.whole_path_calls),
    )
}
LONG_TABLES = (*products.LONG_TABLES, unseen_shapes.HELD_OUT)


def marked_pages() -> list[Path]:
    """Return README.md and the pages of docs/ that have marks."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [path for path in found if MARK.search(path.read_text(encoding="utf-8"))]


def filled_page(page: str, results: Path) -> str:
    """Return the text of a page with every marked section written anew."""
    return MARK.sub(lambda m: m[1] + "\n".join(SECTIONS[m[2]](results)).strip() + "\n" + m[3], page)


def generated_files() -> Iterator[tuple[Path, str]]:
    """Yield every page and CSV file with the text that results/ gives it."""
    for path in marked_pages():
        yield path, filled_page(path.read_text(encoding="utf-8"), RESULTS)
    for long in LONG_TABLES:
        text = long.csv_text(RESULTS)
        if text.count("\n") > 1:  # the names of the columns alone: nothing was measured
            yield RESULTS / "tables" / f"{long.name}.csv", text
    if demo.RECORDING.exists():
        yield demo.DRAWING, demo.svg_text(json.loads(demo.RECORDING.read_text("utf-8")))


def main(arguments: Sequence[str]) -> int:
    """Write the pages and tables; with --check, return 1 if one is out of date."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks pages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    parser.add_argument("--figure", action="store_true", help="draw the SVG files in docs/ too")
    options = parser.parse_args(arguments)
    stale = 0
    for path, text in generated_files():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale += 1
            print(f"{path.relative_to(ROOT)} {'is out of date' if options.check else 'is written'}")
            if not options.check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    if options.figure:
        from benchmarks.figure import draw_error_against_time, draw_speedup

        emulation = RESULTS / "nvidia-h100-80gb-hbm3" / "emulation.json"
        draw_error_against_time(emulation, ROOT / "docs" / "error-against-time.svg")
        draw_speedup(RESULTS / "nvidia-h200" / "calls.json", ROOT / "docs" / "speedup.svg")
    return int(bool(options.check and stale))
