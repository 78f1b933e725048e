"""Read a file of shapes to certify: a list of shapes, products that PyTorch recorded, or a report of fmm.

A list of shapes has lines `M K N` or `M K N TYPE`; # begins a comment.

PyTorch's TunableOp records a program's products in tunableop_untuned*.csv. TunableOp records the sizes of column-major
BLAS: the first size is n, the second m.

`fmm.report` counts a program's products; with FMM_REPORT=run.json, the program writes the counts to run.json.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fmm.config.reader import ConfigError, JsonCheck, check_text, integer_check, read_fields, wrong_value_error
from fmm.dtypes import DTYPES, FLOAT_TYPES
from fmm.integrations.report import ProductKind
from fmm.runtime.decisions.early_declines import MIN_PLAN_SIDE, is_small_on_device
from fmm.tuner.stages.shapes import Size

MAX_SIDE = 1 << 40  # largest side of a shape


class ShapesFileError(ValueError):
    """Raised if a file of shapes cannot be read."""


class ListedShape(NamedTuple):
    """A shape from a list of shapes; without a type, the shape is certified for all tuned types."""

    size: Size
    dtype: str = ""


class RecordedShape(NamedTuple):
    """A shape and element type that a program has multiplied; the type need not be one that fmm tunes."""

    size: Size
    dtype: str

    def is_small(self, on_gpu: bool) -> bool:
        """Return True if the product is so small that no plan can be faster than the vendor."""
        if on_gpu:
            return is_small_on_device(*self.size, DTYPES[self.dtype].itemsize)
        return min(self.size) < MIN_PLAN_SIDE


@dataclass(frozen=True)
class ShapesFile:
    """The shapes of a file: listed shapes in the order of the file, and a program's shapes, the most work first."""

    path: Path
    listed: tuple[ListedShape, ...]
    recorded: tuple[RecordedShape, ...]

    def shapes_of_type(self, dtype: str, on_gpu: bool) -> list[Size]:
        """Return the shapes to certify for an element type; a program's products are left out if they are too small."""
        listed = [shape.size for shape in self.listed if shape.dtype in ("", dtype)]
        recorded = [x.size for x in self.recorded if x.dtype == dtype and not x.is_small(on_gpu)]
        return list(dict.fromkeys([*listed, *recorded]))


def read_shapes_file(path: Path) -> ShapesFile:
    """Return the shapes in a file; for a damaged file, raise ShapesFileError with the name of the file and the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # without a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise ShapesFileError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if text.lstrip().startswith("{"):
        return ShapesFile(path, (), _shapes_by_work(_multiply_adds_by_shape(path, text)))
    listed: list[ListedShape] = []
    work: Counter[RecordedShape] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{path}, line {number}: {line.strip()[:60]!r}"
        if TUNABLE_OP_PATTERN.match(line):
            if (recorded := _parse_tunable_op_line(line, where)) is not None:
                work[recorded] = prod(recorded.size)
        elif words := line.partition("#")[0].replace(",", " ").split():
            listed.append(_parse_listed_shape(words, where))
    return ShapesFile(path, tuple(listed), _shapes_by_work(work))


def _shapes_by_work(work: Counter[RecordedShape]) -> tuple[RecordedShape, ...]:
    """Return the shapes sorted by their number of multiply-adds, the largest number first."""
    return tuple(shape for shape, _ in work.most_common())


# ---- lists


def _parse_listed_shape(words: list[str], where: str) -> ListedShape:
    try:
        m, k, n = (int(word) for word in words[:3])
        if (
            not 1 <= min(m, k, n) <= max(m, k, n) <= MAX_SIDE
            or len(words) > 4
            or (len(words) == 4 and words[3] not in FLOAT_TYPES)
        ):
            raise ValueError
    except ValueError:
        valid = f"M K N, three whole numbers from 1 to {MAX_SIDE}, optionally a type: {', '.join(FLOAT_TYPES)}"
        raise ShapesFileError(
            f"{where}; a line is {valid}; or the file is PyTorch's tunableop_untuned*.csv or a report in JSON"
        ) from None
    return ListedShape((m, k, n), *words[3:])


# ---- PyTorch's TunableOp

TUNABLE_OP_PATTERN = re.compile(r"\s*(Scaled)?Gemm")
# A line of TunableOp's file has two fields, separated by a comma: the operator with its type and layouts, and the
# layouts with the sizes n, m and k. TunableOp may append leading dimensions and PyTorch's tuning result to a line.
TUNABLE_OP_FIELDS = re.compile(
    r"\s*\w*?TunableOp_(?P<type>.+?)_[NTC]{2},[ntc]{2}_(\d{1,13})_(\d{1,13})_(\d{1,13})(?=[_,]).*"
)
TUNABLE_OP_TYPES = MappingProxyType(
    {
        "double": "float64",
        "float": "float32",
        "Float": "float32",
        "tf32": "tf32",
        "Half": "float16",
        "BFloat16": "bfloat16",
        "c10::complex<float>": "complex64",
        "c10::complex<double>": "complex128",
    }
)


def _parse_tunable_op_line(line: str, where: str) -> RecordedShape | None:
    """Return the shape that a line of TunableOp's file records; None for 8-bit floats, which fmm does not multiply."""
    fields = TUNABLE_OP_FIELDS.fullmatch(line)
    sizes = [int(x) for x in fields.group(2, 3, 4)] if fields else [0]
    if fields is None or not 1 <= min(sizes) <= max(sizes) <= MAX_SIDE:
        raise ShapesFileError(f"{where}; a line of TunableOp is like GemmTunableOp_float_TN,tn_N_M_K_ld_...")
    if fields["type"].startswith("Float8"):
        return None
    if fields["type"] not in TUNABLE_OP_TYPES:
        raise ShapesFileError(f"{where}; a type of TunableOp is {', '.join(TUNABLE_OP_TYPES)} or Float8_...")
    n, m, k = sizes
    return RecordedShape((m, k, n), TUNABLE_OP_TYPES[fields["type"]])


# ---- reports


def _multiply_adds_by_shape(path: Path, text: str) -> Counter[RecordedShape]:
    """Return a counter of multiply-adds: shape in a report's JSON -> number in all products of this shape."""
    try:
        report = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        reason = getattr(error, "msg", "") or str(error)
        raise ShapesFileError(f"{path}, line {line}: the report is damaged: {reason}") from None
    products = report.get("products")
    if not isinstance(products, list):
        raise ShapesFileError(f"{path}, line 1: no report of fmm: a report has a list of products")
    work: Counter[RecordedShape] = Counter()
    for i, product in enumerate(products):
        try:
            fields = _read_product(product)
        except ConfigError as error:
            line = next((x for j, x in enumerate(_product_lines(text)) if j == i), 1)
            raise ShapesFileError(f"{path}, line {line}: the report is damaged: {error}") from None
        size = ProductKind("", tuple(fields["left"]), tuple(fields["right"]), fields["dtype"]).matrix_size
        if size is not None and fields["dtype"] in FLOAT_TYPES:
            work[RecordedShape(size, fields["dtype"])] += fields["times"] * prod(size)
    return work


def _read_product(product: Any) -> dict[str, Any]:
    """Return the checked fields of a reported product that define its shape; other fields are ignored."""
    if not isinstance(product, dict):
        raise wrong_value_error("product", "an object", product)
    own = {name: value for name, value in product.items() if name in PRODUCT_FIELD_CHECKS}
    return read_fields(own, "product", PRODUCT_FIELD_CHECKS)


def _check_sides(value: Any, where: str) -> list[int]:
    if not isinstance(value, list) or not value:
        raise wrong_value_error(where, "a list of sides", value)
    return [integer_check(0, MAX_SIDE)(side, where) for side in value]


PRODUCT_FIELD_CHECKS: dict[str, JsonCheck] = {
    "times": integer_check(1, 1 << 60),
    "left": _check_sides,
    "right": _check_sides,
    "dtype": check_text,
}


def _product_lines(text: str) -> Iterator[int]:
    """Yield, for each product in the JSON text of a report, the number of the line on which the product begins."""
    begin = re.search(r'(?<!\\)"products"\s*:\s*\[', text)
    at, decoder = begin.end() if begin else len(text), json.JSONDecoder()
    while at < len(text):
        at = re.compile(r"[\s,]*").match(text, at).end()  # type: ignore[union-attr]
        if text[at] == "]":
            return
        yield text.count("\n", 0, at) + 1
        at = decoder.raw_decode(text, at)[1]
