"""Step tables: proved on symbols, agreeing with what the papers print and count, and honest about bad tables."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from itertools import count, product
from pathlib import Path

import pytest

from fmm.kernels import registry
from fmm.kernels.algorithms.step_table import (
    TABLES_PROVED_UNEQUAL,
    StepTable,
    StepTableError,
    kernel_table,
    parse_step_table,
    parse_table_kernel,
    step_table,
    step_table_names,
)
from fmm.kernels.cpu.symbolic_proof import (
    Polynomial,
    first_plan_defect,
    is_correct_with_unequal_blocks,
    plan_defect,
    prove_fringe,
    symbolic_matrix,
)
from fmm.kernels.plans.levels.scheme_level import build_scheme_level, scheme_level
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import Plan, PlanError
from tests.oracles import li
from tests.support.marks import quick_and_slow

MODULE = importlib.import_module("fmm.kernels.algorithms.step_table")
FOLDER = Path(MODULE.__file__ or "").parent / "step_tables"
NAMES = step_table_names()
BLOCKS = [f"{letter}{i}{j}" for letter in "ABC" for i in "12" for j in "12"]

_serial = count()


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def plan_of(table: StepTable, fringe: str = "pad") -> Plan:
    """Return the plan of a table that is in no file."""
    return Plan((build_scheme_level(f"{table.name} {next(_serial)}", None, table, "sequential", fringe),))


# ---- proofs


def test_the_papers_tables_are_there() -> None:
    assert {"li-fig2", "li-fig3", "li-fig12", "li-fig13", "li-fig16", "li-fig23", "hasa", "adaptive-winograd"} <= set(
        NAMES
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_table_computes_ab(name: str) -> None:
    table = step_table(name)
    assert table.product_count == 7
    assert first_plan_defect(plan_of(table), [(2, 2, 2), (4, 4, 4), (4, 2, 4)]) is None


@pytest.mark.parametrize("name", NAMES)
def test_every_table_uses_exactly_its_temporaries(name: str) -> None:
    table = step_table(name)
    used = {place for step in table.steps for place in step.places}
    assert used - set(BLOCKS) == set(table.temporaries)
    assert {p for step in table.steps for p in step.read_blocks} >= set(table.temporaries), (
        "a temporary that nobody reads"
    )
    line = f"temps   {' '.join(table.temporaries)}"
    for missing in table.temporaries:
        fewer = line.replace(f" {missing}", "")
        with pytest.raises(StepTableError, match=f"fewer.txt: .*undeclared {missing}"):
            parse_step_table(table.to_text().replace(line, fewer), "fewer.txt")
    with pytest.raises(StepTableError, match=r"more\.txt: declares T9 but does not use it"):
        parse_step_table(table.to_text().replace(line, f"{line} T9"), "more.txt")


UNEQUAL = {
    # The tables that keep sums of A and B in blocks of C need blocks of one size.
    "li-fig2": False,
    "li-fig12": False,
    "li-fig16": False,
    # Those with temporaries for the sums do not; for Douglas et al.'s order this is found by the proof, not printed.
    "li-fig3": True,
    "li-fig13": True,
    "li-fig23": True,
    "hasa": True,
    "adaptive-winograd": True,
}


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("name", UNEQUAL)
def test_which_tables_bear_unequal_blocks(name: str) -> None:
    assert is_correct_with_unequal_blocks(name) is UNEQUAL[name]
    assert prove_fringe(name) == step_table(name).fringe
    assert (name in TABLES_PROVED_UNEQUAL) is UNEQUAL[name]  # at run time, these tables are not proved again
    # The proof looks at sides of 2 and 3; its claim is for every size.
    if UNEQUAL[name]:
        plan = Plan((scheme_level(name, "sequential", "unequal"),))
        assert first_plan_defect(plan, [(1, 1, 1), (1, 5, 2), (5, 1, 4), (3, 2, 5), (5, 5, 5), (4, 5, 1)]) is None


NAIVE = """
name    naive
source  Strassen's method with M1 formed in C22 and copied: right only where C11 is no larger than C22
size    2 2 2
temps   T1 T2 M
add(A11, A22, T1)
add(B11, B22, T2)
mul(T1, T2, C22)        # M1
copy(C22, C11)
sub(B12, B22, T2)
mul(A11, T2, M)         # M3
storeInc(M, C12, C22)
sub(A21, A11, T1)
add(B11, B12, T2)
mul(T1, T2, M)          # M6
inc(M, C22)
add(A21, A22, T1)
mul(T1, B11, M)         # M2
storeDec(M, C21, C22)
add(A11, A12, T1)
mul(T1, B22, M)         # M5
incDec(M, C12, C11)
sub(A12, A22, T1)
add(B21, B22, T2)
mul(T1, T2, M)          # M7
inc(M, C11)
sub(B21, B11, T2)
mul(A22, T2, M)         # M4
incInc(M, C11, C21)
"""


def test_a_naive_table_fails_on_unequal_blocks() -> None:
    """D'Alberto's post: without attention to the sizes of the temporary results one has an incorrect algorithm."""
    table = parse_step_table(NAIVE, "naive.txt")
    assert first_plan_defect(plan_of(table, "unequal"), [(2, 2, 2), (4, 2, 6)]) is None
    # The last row and column of C11 are lost in C22, which has none.
    assert (plan_defect(plan_of(table, "unequal"), 3, 2, 3) or "").startswith("entry 0,1 is")
    assert plan_defect(plan_of(table, "pad"), 3, 2, 3) is None


def test_the_posts_printed_formula_is_no_algorithm() -> None:
    """It drops the minus signs that the code below it has."""
    text = text_of("adaptive-winograd")
    unsigned = text.replace("sub(B12, B11, T)", "add(B12, B11, T)").replace("sub(S, A11, S)", "add(S, A11, S)")
    assert plan_defect(plan_of(parse_step_table(unsigned)), 2, 2, 2) is not None


def test_hasas_printed_slip_is_no_algorithm() -> None:
    """Table 2 computes T3 = B0 + B1 and then multiplies by T2, which still holds B1 - B3."""
    text = text_of("hasa")
    assert "add(B11, B12, T2)" in text
    printed = text.replace("add(B11, B12, T2)", "add(B11, B12, T3)").replace("temps   T1 T2 M", "temps   T1 T2 T3 M")
    assert plan_defect(plan_of(parse_step_table(printed)), 2, 2, 2) is not None


@pytest.mark.parametrize("name", ["li-fig2", "li-fig12", "li-fig16"])
def test_a_sum_that_does_not_fit_says_where_and_what_to_use(name: str) -> None:
    with pytest.raises(PlanError, match=rf"{name} keeps a 2 x 3 sum in C12, which is only 2 x 2, at sub.*hasa"):
        run_on_symbols(Plan.parse(f"{name} > vendor"), 4, 6, 4)


def run_on_symbols(plan: Plan, m: int, k: int, n: int) -> None:
    lower_level(plan, m, k, n)


# ---- one wrong step

Values = dict[str, Polynomial]


def _oracle() -> dict[str, Callable[..., None]]:
    """What each kernel does to blocks that are single symbols: written out again, apart from kernels.txt."""

    def add(v: Values, x: str, y: str, z: str) -> None:
        v[z] = v[x] + v[y]

    def sub(v: Values, x: str, y: str, z: str) -> None:
        v[z] = v[x] - v[y]

    def mul(v: Values, x: str, y: str, z: str) -> None:
        v[z] = v[x] * v[y]

    def both(store: bool, first: int, second: int, fused: bool) -> Callable[..., None]:
        def kernel(v: Values, *places: str) -> None:
            y, z = places[-2:]
            m = v[places[0]] * v[places[1]] if fused else v[places[0]]
            v[y], v[z] = (m if store else v[y] + m * first), v[z] + m * second

        return kernel

    def one(sign: int, store: bool = False) -> Callable[..., None]:
        def kernel(v: Values, x: str, y: str) -> None:
            v[y] = v[x] if store else v[y] + v[x] * sign

        return kernel

    def mul_add(v: Values, w: str, x: str, y: str, z: str) -> None:
        v[z] = v[w] * v[x] + v[y]

    def mul_inc(v: Values, w: str, x: str, y: str) -> None:
        v[y] = v[y] + v[w] * v[x]

    def mul_inc_inc_inc(v: Values, a: str, b: str, w: str, x: str, y: str, z: str) -> None:
        v[w] = v[a] * v[b]
        v[y] = v[y] + v[w]
        v[z] = v[z] + v[y]
        v[y] = v[y] + v[x]

    def mul_sub_inc(v: Values, a: str, b: str, x: str, y: str, z: str) -> None:
        v[y], v[z] = v[x] - v[a] * v[b], v[z] + v[x]

    def add_add(v: Values, w: str, x: str, y: str, z: str) -> None:
        v[y], v[z] = v[z] + v[y] + v[x], v[z] + v[w] + v[x]

    def sub_add(v: Values, x: str, y: str, z: str) -> None:
        v[y], v[z] = v[x] - v[y], v[x] + v[z]

    def copy_copy(v: Values, x: str, y: str, z: str) -> None:
        v[y] = v[z] = v[x]

    return {
        **{"add": add, "sub": sub, "mul": mul, "mulAdd": mul_add, "mulInc": mul_inc},
        **{"mulSubInc": mul_sub_inc, "mulIncIncInc": mul_inc_inc_inc},
        **{"addAdd": add_add, "subAdd": sub_add, "copyCopy": copy_copy},
        **{"inc": one(1), "dec": one(-1), "copy": one(1, store=True)},
        **{"incInc": both(False, 1, 1, False), "incDec": both(False, 1, -1, False)},
        **{"storeInc": both(True, 1, 1, False), "storeDec": both(True, 1, -1, False)},
        **{"mulIncInc": both(False, 1, 1, True), "mulIncDec": both(False, 1, -1, True)},
        **{"mulStoreInc": both(True, 1, 1, True), "mulStoreDec": both(True, 1, -1, True)},
    }


ORACLE = _oracle()

Call = tuple[str, tuple[str, ...]]


def calls_of(table: StepTable) -> list[Call]:
    return [(step.kernel.name, step.places) for step in table.steps]


def computes_ab(calls: list[Call]) -> bool:
    a, b = symbolic_matrix("a", 2, 2), symbolic_matrix("b", 2, 2)
    values = {
        f"{letter}{i + 1}{j + 1}": x[i, j] for letter, x in (("A", a), ("B", b)) for i, j in product((0, 1), (0, 1))
    }
    for kernel, places in calls:
        ORACLE[kernel](values, *places)
    wanted = {f"C{i + 1}{j + 1}": a[i, 0] * b[0, j] + a[i, 1] * b[1, j] for i, j in product((0, 1), (0, 1))}
    return all(values[block] == value for block, value in wanted.items())


SIGNS = [("add", "sub"), ("inc", "dec"), ("incInc", "incDec"), ("storeInc", "storeDec")]
SIGNS += [("mulIncInc", "mulIncDec"), ("mulStoreInc", "mulStoreDec")]
TURNED = {**dict(SIGNS), **{b: a for a, b in SIGNS}}


def mutants(table: StepTable) -> Iterator[tuple[str, list[Call]]]:
    """Every step left out, with its sign turned, with neighbouring places swapped, and with each place replaced."""
    calls = calls_of(table)
    everywhere = [*BLOCKS, *table.temporaries]
    for i, (kernel, places) in enumerate(calls):
        changed: list[list[Call]] = [[]]
        if kernel in TURNED:
            changed.append([(TURNED[kernel], places)])
        for j in range(len(places)):
            for new in (everywhere[(i + 5 * j) % len(everywhere)], everywhere[(3 * i + j + 7) % len(everywhere)]):
                if new != places[j]:
                    changed.append([(kernel, (*places[:j], new, *places[j + 1 :]))])
            if j and places[j] != places[j - 1]:
                changed.append([(kernel, (*places[: j - 1], places[j], places[j - 1], *places[j + 1 :]))])
        for new_calls in changed:
            yield f"step {i + 1} as {new_calls}", [*calls[:i], *new_calls, *calls[i + 1 :]]


def rejected(table: StepTable, calls: list[Call]) -> bool:
    lines = "".join(f"{kernel}({', '.join(places)})\n" for kernel, places in calls)
    head = f"name x\nsource x\nsize 2 2 2\ntemps {' '.join(table.temporaries)}\n"
    try:
        mutant = parse_step_table(head + lines, "mutant.txt")
    except StepTableError as error:
        assert str(error).startswith("mutant.txt"), "the message names the file"
        return True
    return plan_defect(plan_of(mutant), 2, 2, 2) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", quick_and_slow(NAMES[::4], [name for name in NAMES if name not in NAMES[::4]]))
def test_any_change_of_a_step_is_caught(name: str) -> None:
    """By the parser or by the proof. Changes that leave AB right (operands of an add swapped, ...) are no mistakes;
    which they are is decided by the second evaluator above."""
    table = step_table(name)
    assert computes_ab(calls_of(table))
    assert not rejected(table, calls_of(table))
    wrong = 0
    for what, calls in mutants(table):
        try:
            right = computes_ab(calls)
        except KeyError:  # reads what nobody wrote
            right = False
        wrong += not right
        assert right or rejected(table, calls), f"{name}, {what}: not noticed"
    assert wrong > 80


def test_the_proof_accepts_what_is_right() -> None:
    """Swapping the operands of an addition, or two outputs that get the same, changes nothing."""
    for name, old, new in (
        ("li-fig2", "add(B11, B12, C21)", "add(B12, B11, C21)"),
        ("li-fig16", "incInc(T1, C11, C22)", "incInc(T1, C22, C11)"),
    ):
        assert old in text_of(name)
        assert plan_defect(plan_of(parse_step_table(text_of(name).replace(old, new))), 2, 2, 2) is None


# ---- what the papers print and count

SYMBOL = {"add": "+", "sub": "-", "mul": "*"}


@pytest.mark.parametrize(("name", "printed"), [("li-fig2", li.FIGURE_2), ("li-fig3", li.FIGURE_3)])
def test_figures_2_and_3_step_by_step(name: str, printed: str) -> None:
    steps = [f"{z}={x}{SYMBOL[kernel]}{y}" for kernel, (x, y, z) in calls_of(step_table(name))]
    assert steps == printed.split()


@pytest.mark.parametrize(("name", "printed"), [("li-fig12", li.FIGURE_12), ("li-fig13", li.FIGURE_13)])
def test_figures_12_and_13_call_by_call(name: str, printed: str) -> None:
    assert [f"{kernel}({','.join(places)})" for kernel, places in calls_of(step_table(name))] == printed.split()


@pytest.mark.parametrize("name", ["li-fig2", "li-fig3", "li-fig12", "li-fig13", "li-fig16", "li-fig23"])
def test_lis_tables_need_two_temporaries(name: str) -> None:
    assert step_table(name).temporaries == ("T1", "T2")


def traffic(name: str) -> int:
    """Matrices that a kernel reads and writes, apart from its product's operands."""
    kernel = kernel_table()[name]
    return len(kernel.read_blocks) + len(kernel.written_blocks)


@pytest.mark.parametrize("name", li.FIGURE_11_KERNELS)
def test_figure_11_extra_transactions(name: str) -> None:
    assert traffic(name) - traffic("mul") == li.FIGURE_11_KERNELS[name]


def test_figure_11_additions() -> None:
    assert (traffic("add"), traffic("sub")) == (3, 3)  # 3 m^2/32 transactions of 128 bytes: 12 m^2 bytes


@pytest.mark.parametrize(("name", "sums", "products", "volume"), li.SECTION_6)
def test_section_6_kernel_calls(name: str, sums: int, products: dict[str, int], volume: int) -> None:
    counts = step_table(name).kernel_counts
    assert counts["add"] + counts["sub"] == sums
    assert {kernel: n for kernel, n in counts.items() if kernel not in ("add", "sub")} == products
    extra = sum(n * (traffic(kernel) - (kernel in products)) for kernel, n in counts.items())
    assert 4 * extra == volume


@pytest.mark.parametrize(("name", "single", "double", "total"), li.SECTION_7)
def test_section_7_standalone_additions(name: str, single: int, double: int, total: int) -> None:
    sums = [step for step in step_table(name).steps if not step.kernel.product]
    assert [len(step.written_blocks) for step in sums].count(1) == single
    assert [len(step.written_blocks) for step in sums].count(2) == double
    assert len(sums) == single + double
    assert sum(len(step.read_blocks) + len(step.written_blocks) for step in sums) == total


@pytest.mark.parametrize("name", li.PLAIN_ADDITIONS)
def test_plain_tables_have_the_schemes_additions(name: str) -> None:
    counts = step_table(name).kernel_counts
    assert counts["add"] + counts["sub"] == li.PLAIN_ADDITIONS[name]
    assert counts["mul"] == 7


# ---- kernels


def test_every_kernel_is_used_and_known_to_the_oracle() -> None:
    used = {step.kernel.name for name in NAMES for step in step_table(name).steps}
    assert used <= set(kernel_table())
    assert set(kernel_table()) == set(ORACLE)


@pytest.mark.parametrize("name", list(kernel_table()))
def test_every_kernel_is_its_oracle(name: str) -> None:
    kernel = kernel_table()[name]
    values = {f: Polynomial({(f,): MODULE.Fraction(1)}) for f in kernel.formals}
    sources = [values[kernel.product[0]] * values[kernel.product[1]]] if kernel.product else []
    sources += [values[f] for f in kernel.read_blocks]
    expected = dict(values)
    ORACLE[name](expected, *kernel.formals)
    for write, row, needs in zip(
        kernel.written_blocks, kernel.addition_program.coefficient_matrix(), kernel.write_dependencies, strict=True
    ):
        assert sum((s * c for s, c in zip(sources, row, strict=True)), Polynomial({})) == expected[write]
        assert needs == tuple(i for i, c in enumerate(row) if c)
    assert {f for f in kernel.formals if expected[f] != values[f]} == set(kernel.written_blocks)


def test_assignments_are_done_in_order() -> None:
    kernel = parse_table_kernel("k(X, Y, Z): Y = Y + X; Z = Z - 2 Y; Y = 3 X")
    assert kernel.written_blocks == ("Y", "Z")
    assert kernel.read_blocks == ("Y", "X", "Z")
    assert kernel.addition_program.coefficient_matrix() == ((0, 3, 0), (-2, -2, 1))


BAD_KERNELS = [
    "no call",
    "k(X, Y)",
    "k(X, Y): Y",
    "k(X, Y): Y =",
    "k(X, Y): Q = X",
    "k(X, Y): Y = Q",
    "k(X, Y): Y = X Y",
    "k(X, Y): Y = X * Q",
    "k(X, Y): Y = X +",
    "k(W, X, Y): Y = W * X; X = X * W",
    "k(X, X): X = X",
]


@pytest.mark.parametrize("line", BAD_KERNELS)
def test_bad_kernels_are_refused(line: str) -> None:
    with pytest.raises(StepTableError, match=r"kernel|assignment"):
        parse_table_kernel(line)


# ---- bad tables

FIG3 = text_of("li-fig3")

BAD_TABLES = [
    # (id, old, new, message)
    ("stale temporary", "add(A21, A22, T1)       # S1", "", None),
    ("reads before writing", "sub(A11, A21, T1)       # S3", "", "reads T1 before it is written"),
    ("undeclared temporary", "sub(A11, A21, T1)", "sub(A11, A21, T3)", "undeclared T3"),
    ("unknown block", "sub(A11, A21, T1)", "sub(A11, A31, T1)", "undeclared A31"),
    ("unused temporary", "temps   T1 T2", "temps   T1 T2 T3", "declares T3 but does not use it"),
    ("writes A", "sub(A11, A21, T1)", "sub(A11, A21, A12)", "writes the input A12"),
    ("writes B", "mul(T1, T2, C21)", "mul(T1, T2, B21)", "writes the input B21"),
    ("overwrites an operand", "mul(T1, T2, C21)", "mul(T1, T2, T2)", "overwrites its operand T2 during the product"),
    ("unknown kernel", "sub(A11, A21, T1)", "minus(A11, A21, T1)", "line 6: unknown kernel 'minus'.*add, sub, mul"),
    ("too few places", "sub(A11, A21, T1)", "sub(A11, T1)", "line 6: sub takes 3 places, not 2"),
    ("too many places", "sub(A11, A21, T1)", "sub(A11, A21, T1, T2)", "line 6: sub takes 3 places, not 4"),
    ("no name", "name    li-fig3", "", "name missing"),
    ("no temps", "temps   T1 T2", "", "temps missing"),
    ("size not numbers", "size    2 2 2", "size 2 2 x", "size|x"),
    ("size of two", "size    2 2 2", "size 2 2", "size"),
    ("size larger", "size    2 2 2", "size 2 2 3", "never writes C13, C23"),
    ("unclosed call", "mul(T1, B22, C12)", "mul(T1, B22, C12", r"mul\(T1, B22, C12"),
    ("unknown line", "mul(T1, B22, C12)", "hello world", "hello"),
    ("same place twice", "sub(C11, C21, C21)      # V2 - M7", "incInc(C11, C21, C21)", "writes one place twice"),
    ("temporary named like a block", "temps   T1 T2", "temps   T1 T2 A11", "A11"),
]


@pytest.mark.parametrize(
    ("old", "new", "message"), [case[1:] for case in BAD_TABLES if case[3]], ids=[c[0] for c in BAD_TABLES if c[3]]
)
def test_bad_tables_say_what_is_wrong(old: str, new: str, message: str) -> None:
    assert old in FIG3
    with pytest.raises(StepTableError, match=rf"^bad\.txt.*({message})"):
        parse_step_table(FIG3.replace(old, new, 1), "bad.txt")


def test_a_stale_read_is_found_by_the_proof() -> None:
    """Without S1, the next product reads S3, which is still in T1: written, but not what is meant."""
    old = "add(A21, A22, T1)       # S1\n"
    assert old in FIG3
    assert plan_defect(plan_of(parse_step_table(FIG3.replace(old, ""))), 2, 2, 2) is not None


def test_reading_what_nobody_wrote_is_found_by_the_proof_too() -> None:
    """A column that a cropped write left out: temporaries of the proof hold None, not zero."""
    table = parse_step_table(NAIVE, "naive.txt")
    assert "entry" in (plan_defect(plan_of(table, "unequal"), 2, 2, 3) or "")


@pytest.mark.parametrize("name", NAMES)
def test_text_round_trip(name: str) -> None:
    table = step_table(name)
    assert parse_step_table(table.to_text()) == table
    assert [str(step) for step in table.steps] == re.findall(r"^\w+\(.*?\)", text_of(name), re.MULTILINE)


NEW_NAMES = ["X", "P", "M", "D", "S1", "AB", "BC", "C", "scratch"]


@pytest.mark.parametrize("new", NEW_NAMES)
@pytest.mark.parametrize("name", ["li-fig12", "hasa"])
def test_a_table_is_right_whatever_its_temporaries_are_called(name: str, new: str) -> None:
    """Or the name is refused: lowering has names of its own, for A, B, C and for scratch."""
    text = re.sub(r"\bT2\b", new, text_of(name))
    if new in step_table(name).temporaries:
        return
    try:
        table = parse_step_table(text, "renamed.txt")
    except StepTableError as error:
        assert new in str(error)
        return
    assert first_plan_defect(plan_of(table, "pad"), [(2, 2, 2), (3, 2, 3)]) is None


def test_a_temporary_called_p_is_not_the_scratch_of_a_fused_kernel() -> None:
    """Figure 12 with step 12 before step 9: T2, here called P, then lives on across a fused product's scratch."""
    early = text_of("li-fig12")
    step = next(line for line in early.splitlines() if line.startswith("add(A21, A22, T2)"))
    early = early.replace(step + "\n", "").replace("mulIncInc(C12, C21", f"{step}\nmulIncInc(C12, C21")
    assert first_plan_defect(plan_of(parse_step_table(early)), [(2, 2, 2)]) is None
    assert first_plan_defect(plan_of(parse_step_table(re.sub(r"\bT2\b", "P", early))), [(2, 2, 2)]) is None


# ---- the folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of step tables of our own, with the package's kernels; what was found before is forgotten."""
    for name in ("kernels", "hasa"):
        (tmp_path / f"{name}.txt").write_text(text_of(name), encoding="utf-8")

    def forget() -> None:
        registry.clear_caches()
        is_correct_with_unequal_blocks.cache_clear()

    monkeypatch.setattr(MODULE.STEP_TABLE_FILES, "folder", tmp_path)
    forget()
    yield tmp_path
    monkeypatch.undo()
    forget()


def test_a_table_dropped_into_the_folder_is_found(folder: Path) -> None:
    (folder / "mine.txt").write_text(FIG3.replace("name    li-fig3", "name    mine"), encoding="utf-8")
    assert MODULE.step_table_names() == ("hasa", "mine")
    assert step_table("mine").product_count == 7
    assert str(Plan.parse("mine > vendor")) == "mine > vendor"
    assert plan_defect(Plan.parse("mine > vendor"), 3, 5, 3) is None


def test_a_wrong_table_dropped_into_the_folder_is_refused(folder: Path) -> None:
    """A scheme's file is proved when it is loaded; a step table's must be too, or its plan gives wrong products."""
    wrong = FIG3.replace("name    li-fig3", "name    wrong").replace("sub(T1, A11, T1)", "add(T1, A11, T1)")
    (folder / "wrong.txt").write_text(wrong, encoding="utf-8")
    with pytest.raises(ValueError, match="wrong"):
        Plan.parse("wrong > vendor")


def test_a_table_that_says_nothing_of_its_fringe_is_padded(folder: Path) -> None:
    mine = re.sub(r"^(fringe|consider).*\n", "", FIG3.replace("name    li-fig3", "name    mine"), flags=re.MULTILINE)
    (folder / "mine.txt").write_text(mine, encoding="utf-8")
    assert Plan.parse("mine > vendor") == Plan.parse("mine.pad > vendor")


def test_a_table_that_says_too_much_of_its_fringe_is_refused(folder: Path) -> None:
    """Right on equal blocks, and wrong on others: it must not run on them without anybody's asking for it."""
    (folder / "naive.txt").write_text(f"{NAIVE}\nfringe  unequal\n", encoding="utf-8")
    with pytest.raises(PlanError, match="the step table naive declares `fringe unequal`, but is wrong on unequal"):
        Plan.parse("naive > vendor")
    assert plan_defect(Plan.parse("naive.pad > vendor"), 3, 5, 3) is None


WORDS = [
    ("fringe  peel", "unknown fringe 'peel'; valid: unequal, pad"),
    ("consider  all", "unknown form 'all' in the line consider"),
]


@pytest.mark.parametrize(("line", "message"), WORDS)
def test_what_is_said_of_a_table_must_be_readable(line: str, message: str) -> None:
    word = line.split()[0]
    with pytest.raises(StepTableError, match=f"bad.txt: {message}"):
        parse_step_table(re.sub(rf"^{word}.*$", line, FIG3, flags=re.MULTILINE), "bad.txt")


def test_unknown_names_say_what_is_valid(folder: Path) -> None:
    with pytest.raises(StepTableError, match="unknown step table 'li-fig3'; the step tables are hasa"):
        step_table("li-fig3")


def test_a_name_line_that_differs_from_the_file_is_refused(folder: Path) -> None:
    (folder / "other.txt").write_text(FIG3, encoding="utf-8")
    with pytest.raises(StepTableError, match=r"other\.txt: its name line says 'li-fig3'; it must be 'other'"):
        step_table("other")
