"""The cost of a plan: against Li's counts, and against an executor that counts while it runs."""

import random
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.algorithms.additions import AdditionProgram
from fmm.kernels.algorithms.catalogue import scheme_names
from fmm.kernels.algorithms.step_table import step_table, step_table_names
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, aligned_block
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.levels.balanced import BalancedLevel, balanced_level
from fmm.kernels.plans.levels.scheme_level import SchemeLevel, level_with_options
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.sums import Mirror, Sum
from fmm.kernels.plans.workspace import count_leaf_products, plan_workspace_bytes
from fmm.perfmodel.cost import Cost, cost
from fmm.perfmodel.papers.li_counts import arithmetic_count

Size = tuple[int, int, int]

# ---- an executor that counts


@dataclass(eq=False)
class Tally:
    """Additions met by the numbers themselves; a product's own additions are not the sums'."""

    additions: int = 0
    active: bool = True

    def count(self) -> None:
        self.additions += self.active


class Number:
    """A number that tells its tally when it is added."""

    __slots__ = ("tally", "value")

    def __init__(self, value: float, tally: Tally) -> None:
        self.value, self.tally = value, tally

    def __add__(self, other: "Number") -> "Number":
        self.tally.count()
        return Number(self.value + other.value, self.tally)

    def __sub__(self, other: "Number") -> "Number":
        self.tally.count()
        return Number(self.value - other.value, self.tally)

    def __rsub__(self, zero: int) -> "Number":
        """A negation: 0 - x is no addition."""
        return Number(zero - self.value, self.tally)

    def __mul__(self, other: "Number | float") -> "Number":
        return Number(self.value * (other.value if isinstance(other, Number) else other), self.tally)


@dataclass
class Counting:
    """A backend that runs everything and writes down what each sum and product touches, element by element."""

    itemsize: int
    transaction: int
    tally: Tally = field(default_factory=Tally)
    read: int = 0
    written: int = 0
    leaf: int = 0
    transactions: int = 0
    launches: int = 0
    leaves: Counter[Size] = field(default_factory=Counter)

    def multiply(self, leaf: str, left: Any, right: Any, dest: Any) -> None:
        (m, k), n = left.shape, right.shape[1]
        self.leaves[m, k, n] += 1
        self.tally.active = False
        dest[...] = np.matmul(left, right) if m * k * n else Number(0, self.tally)
        self.tally.active = True
        if m * k * n:
            self.launches += 1
            self.leaf += sum(self._moved(x.size) for x in (left, right, dest))

    def multiply_triangle(self, leaf: str, left: Any, right: Any, dest: Any, asked: GemmParams) -> None:
        raise AssertionError("only whole products are counted here")

    def mirror_triangle(self, step: Mirror, source: Any, dest: Any) -> None:
        raise AssertionError("only whole products are counted here")

    def multiply_batch(self, leaf: str, lefts: list[Any], rights: list[Any], dests: list[Any]) -> None:
        before = self.launches
        for operands in zip(lefts, rights, dests, strict=True):
            self.multiply(leaf, *operands)
        self.launches = min(self.launches, before + 1)

    def compute_sums(self, step: Sum, reads: list[Any], writes: list[Any]) -> None:
        touched = Counter[int]()
        for i, j in np.ndindex(*(max(w.shape[axis] for w in writes) for axis in (0, 1))):
            present = [i < x.shape[0] and j < x.shape[1] for x in reads]
            wanted = [i < x.shape[0] and j < x.shape[1] for x in writes]
            touched.update(needed(step.program, present, wanted))
        self.read += sum(self._moved(x) for x in touched.values())
        self.written += sum(self._moved(w.size) for w in writes)
        self.launches += any(w.size for w in writes)
        NumpyBackend(ThreadGroup(1)).compute_sums(step, reads, writes)
        for w in writes:  # what the backend cleared is to count again
            w[w == 0] = Number(0, self.tally)

    def _moved(self, elements: int) -> int:
        self.transactions += -(-elements * self.itemsize // self.transaction)
        return elements * self.itemsize


def needed(program: AdditionProgram, present: list[bool], wanted: list[bool]) -> set[int]:
    """The inputs that one element of the wanted outputs reads, found from the outputs backwards."""
    alive = list(present)
    for terms in program.lines:
        alive.append(any(alive[v] for _, v in terms))
    found: set[int] = set()
    pending = [v for v, want in zip(program.outputs, wanted, strict=True) if want]
    while pending:
        value = pending.pop()
        if alive[value] and value < program.inputs:
            found.add(value)
        elif alive[value]:
            pending += [v for _, v in program.lines[value - program.inputs]]
    return found


class ObjectArena:
    """Temporaries of numbers that count."""

    used_bytes = 0

    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    def allocate(self, rows: int, cols: int, fortran: bool = False, dtype: str = "") -> Any:
        return numbers(rows, cols, self.tally)

    def free_temporaries_since(self, mark: int) -> None:
        pass


def numbers(rows: int, cols: int, tally: Tally) -> Any:
    x = np.empty((rows, cols), dtype=object)
    for i, j in np.ndindex(rows, cols):
        x[i, j] = Number(i - 2.0 * j + 1, tally)
    return x


def counted(plan: Plan, size: Size, itemsize: int, transaction: int, beta: int = 0) -> Counting:
    backend = Counting(itemsize, transaction)
    m, k, n = size
    a, b, c = (numbers(*shape, backend.tally) for shape in ((m, k), (k, n), (m, n)))
    execute_plan(plan, a, b, c, backend, ObjectArena(backend.tally), 1, beta)
    return backend


PLANS = (
    "vendor",
    "strassen > vendor",
    "winograd > winograd > vendor",
    "winograd^2 > vendor",
    "strassen.sequential > winograd > vendor",
    "strassen.pad > vendor",
    "winograd.pad4 > vendor",  # blocks of whole fours
    "strassen.batched > vendor",
    "winograd.batched > winograd.batched > vendor",
    "strassen.overlapped > winograd > strassen > vendor",
    "hasa > strassen.overlapped.peel > winograd.pad > vendor",
    "aligned.pad4 > strassen > lt3",
    "dps.sequential.pad > vendor",
    "hk223 > strassen > vendor",
    "laderman.peel > vendor",
    "hasa > vendor",
    "hasa > adaptive-winograd > vendor",
    "li-fig2 > vendor",
    "li-fig13 > li-fig3 > vendor",
    "li-fig16.peel > li-fig12 > vendor",
    "balanced(2) > winograd > vendor",
    "balanced(1.5) > strassen.peel > hasa > vendor",
)
SIZES = ((8, 8, 8), (9, 8, 10), (7, 7, 7), (12, 5, 9), (5, 16, 4), (6, 2, 13), (17, 4, 4))


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("text", PLANS)
def test_cost_is_what_the_executor_does(text: str) -> None:
    plan = Plan.parse(text)
    ran = 0
    for (m, k, n), beta in product(SIZES, (0, 1)):
        try:
            found = cost(plan, m, k, n, 8, 32, beta=beta)
        except PlanError:
            continue  # a table that keeps sums of A and B in C, and k is too long
        ran += 1
        real = counted(plan, (m, k, n), 8, 32, beta)
        assert found.additions == real.tally.additions
        assert (found.bytes_read, found.bytes_written, found.leaf_bytes) == (real.read, real.written, real.leaf)
        assert found.transactions == real.transactions
        assert found.launches == real.launches
        assert dict(found.leaves) == real.leaves
    assert ran >= 4


@pytest.mark.slow
def test_sizes_too_large_to_run_obey_the_same_recipes() -> None:
    """The formulas for large blocks, at sizes that differ from what they were counted at in every remainder."""
    plans = [Plan.parse(text) for text in ("winograd > vendor", "hk233.sequential > vendor", "hasa > vendor")]
    for plan, m, k, n in product(plans, range(31, 35), range(31, 35), range(31, 35)):
        found = cost(plan, m, k, n, 4, 128)
        assert dict(found.leaves) == count_leaf_products(plan, m, k, n)
        assert found.workspace == plan_workspace_bytes(plan, m, k, n, 4)


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize("seed", range(30))
def test_random_plans_against_the_executor(seed: int) -> None:
    draw = random.Random(seed)
    plan, size = random_plan(draw, 2), (draw.randint(1, 20), draw.randint(1, 20), draw.randint(1, 20))
    try:
        found = cost(plan, *size, 4, 64)
    except PlanError:
        with pytest.raises(PlanError):
            counted(plan, size, 4, 64)
        return
    real = counted(plan, size, 4, 64)
    assert (found.additions, found.bytes_read, found.bytes_written) == (real.tally.additions, real.read, real.written)
    assert (found.transactions, found.launches, dict(found.leaves)) == (real.transactions, real.launches, real.leaves)
    assert found.workspace == plan_workspace_bytes(plan, *size, 4)


def test_workspace_is_the_arenas_peak() -> None:
    for text in ("winograd > hasa > vendor", "strassen.sequential > strassen > vendor"):
        plan, (m, k, n) = Plan.parse(text), (37, 41, 29)
        found = cost(plan, m, k, n, 8)
        arena = Arena(aligned_block(found.workspace), np.dtype(float))
        a, b, c = np.ones((m, k)), np.ones((k, n)), np.empty((m, n))
        execute_plan(plan, a, b, c, NumpyBackend(ThreadGroup(1)), arena)
        # C-ordered operands: a temporary needs less than the allowance for either order
        assert 0.9 * found.workspace <= arena.peak <= found.workspace
        assert np.allclose(c, k)


# ---- against Li's counts


@pytest.mark.parametrize(
    ("text", "scheme", "k"),
    [
        ("li-fig12 > vendor", "strassen", 1),
        ("li-fig13 > vendor", "winograd", 1),
        ("li-fig16 > li-fig12 > vendor", "strassen", 2),
        ("li-fig2 > li-fig2 > li-fig2 > vendor", "strassen", 3),  # 18 additions, whatever the order
        ("li-fig3 > li-fig3 > vendor", "winograd", 2),
        ("hasa > hasa > vendor", "strassen", 2),
        ("strassen^3 > vendor", "strassen", 3),
        ("winograd > winograd > winograd > winograd > vendor", "winograd", 4),
        ("winograd^2 > winograd > vendor", "winograd", 3),
    ],
)
def test_arithmetics_are_lis(text: str, scheme: str, k: int) -> None:
    for n in (2**k, 64, 1024, 16384):
        assert cost(Plan.parse(text), n, n, n).arithmetic_count == arithmetic_count(scheme, k, n)


def test_a_recursive_table_adds_as_its_kernels_do() -> None:
    """The executor runs Figure 23's kernels as steps/kernels.txt has them."""
    for name in step_table_names():
        per_level = sum(step.kernel.addition_program.addition_count for step in step_table(name).steps)
        assert cost(Plan((level_with_options(name),)), 64, 64, 64).additions == per_level * 32 * 32


def test_one_stacked_level_by_hand() -> None:
    """Strassen stacked, 8 x 8 of 8 bytes: A and B read once whole, five operands each written, seven products read."""
    found = cost(Plan.parse("strassen > vendor"), 8, 8, 8, 8, 128)
    block = 16 * 8
    assert found == Cost(
        flops=7 * 2 * 64,
        additions=18 * 16,
        bytes_read=(4 + 4 + 7) * block,
        bytes_written=(5 + 5 + 4) * block,
        leaf_bytes=7 * 3 * block,
        transactions=15 + 14 + 21,  # a block is one transaction
        launches=3 + 7,
        leaves=(((4, 4, 4), 7),),
        workspace=13 * 4 * 64,  # four products stand in C; rows are padded to cache lines
        depth=1,
    )
    assert found.total_bytes == found.bytes_read + found.bytes_written + found.leaf_bytes


@pytest.mark.parametrize(
    ("text", "launches", "batched"),
    [
        ("vendor", 1, 1),
        ("strassen > vendor", 10, 4),  # two splits, the batch, the join
        ("strassen.batched > vendor", 4, 4),  # batched because the plan says so
        ("strassen^2 > vendor", 3 + 49, 4),
        ("strassen > strassen > vendor", 3 + 7 * 10, 3 + 7 * 4),  # only leaves are batched
        ("strassen.sequential > vendor", 24, 24),  # ten sums of operands, seven products, seven additions
        ("li-fig12 > strassen > vendor", 10 + 7 * 10 + 5, 10 + 7 * 4 + 5),  # ten sums, five fused updates
    ],
)
def test_launches(text: str, launches: int, batched: int) -> None:
    plan = Plan.parse(text)
    assert cost(plan, 64, 64, 64).launches == launches
    assert cost(plan, 64, 64, 64, batched=True).launches == batched


def test_batches_are_of_one_shape() -> None:
    """Unequal blocks: products of 3 and 4 rows do not share a launch."""
    plan = Plan.parse("strassen > vendor")
    shapes = len(cost(plan, 7, 8, 8).leaves)
    assert shapes > 1
    assert cost(plan, 7, 8, 8, batched=True).launches == 3 + shapes


@pytest.mark.parametrize("size", [(0, 5, 5), (5, 0, 5), (5, 5, 0), (0, 0, 0)])
def test_nothing_costs_nothing(size: Size) -> None:
    assert cost(Plan.parse("strassen > vendor"), *size) == Cost(0, 0, 0, 0, 0, 0, 0, (), 0, 1)


@pytest.mark.parametrize(
    ("size", "options", "words"),
    [
        ((-1, 2, 2), {}, "m = -1"),
        ((2, 2, -7), {}, "n = -7"),
        ((2, 2, 2), {"itemsize": 0}, "itemsize = 0"),
        ((2, 2, 2), {"transaction": -4}, "transaction = -4"),
    ],
)
def test_bad_input_is_named(size: Size, options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cost(Plan.parse("strassen > vendor"), *size, **options)  # type: ignore[arg-type]


def test_a_table_that_does_not_fit_says_so_at_any_size() -> None:
    """li-fig12 keeps sums of A and B in C: k must be the shortest side; the message has the problem's own sizes."""
    for k in (6, 600, 60_000):
        with pytest.raises(PlanError, match=f"keeps a 2 x {k // 2} sum"):
            cost(Plan.parse("li-fig12 > vendor"), 4, k, 4)


def test_units_scale_exactly() -> None:
    plan = Plan.parse("winograd > winograd > vendor")
    single, double = (cost(plan, 512, 512, 512, item, 128) for item in (4, 8))
    assert double.total_bytes == 2 * single.total_bytes and double.transactions == 2 * single.transactions
    assert Fraction(single.total_bytes, single.transactions) == 128  # all transactions full


# ---- speed


TABLES = step_table_names()
ALGORITHMS = (*scheme_names(), *TABLES, "strassen^2")
FRINGES = ((), (), (), (), ("pad",), ("pad",), ("peel",))  # most often each algorithm's own


def random_plan(draw: random.Random, depth: int = 3) -> Plan:
    """Return a random plan: any scheme or table, any traversal and fringe, up to `depth` levels."""

    def one() -> SchemeLevel | BalancedLevel:
        if draw.random() < 0.1:
            return balanced_level(draw.choice((1.5, 2, 3)))
        name = draw.choice(ALGORITHMS)
        options = () if name in TABLES else (draw.choice(("stacked", "sequential")),)
        return level_with_options(name, *options, *draw.choice(FRINGES))

    return Plan(tuple(one() for _ in range(draw.randint(0, depth))))
