"""torch's operators while fmm is installed below them: on the host, by its explicit place, and on CUDA devices."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fmm
from fmm.config import environment
from fmm.integrations.install_targets import CannotInstallError
from fmm.integrations.report import begin_report, end_report
from fmm.kernels import long_waits
from fmm.kernels.plans.plan import VENDOR, Plan
from tests.support import ROOT
from tests.support.torch_plans import LEVEL, N, draw_tensor, same, shards_of_one_process

torch: Any = pytest.importorskip("torch")
if not hasattr(torch.library, "get_kernel"):
    pytest.skip("this torch does not hand out its kernels", allow_module_level=True)
from fmm.integrations import torch_answers, torch_hook, torch_install  # noqa: E402 - load torch
from fmm.integrations.torch_kernels import TORCH_OPERATORS, bypass_fmm  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("plans_run"),
    pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning"),  # of torch itself, which loads what it deprecates
]


@pytest.fixture(params=["python", pytest.param("compiled", marks=pytest.mark.slow)])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Is the hook in C++ in front? It takes a compiler and ten seconds, once."""
    if request.param == "python":
        return False
    monkeypatch.setenv("XDG_CACHE_HOME", str(ROOT / ".test-cache"))
    if torch_hook.load_compiled_hook() is None:
        pytest.skip("no C++ compiler")
    return True


@pytest.fixture
def requested(
    device: str, compiled: bool, plans_run: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[tuple[int, ...]]]:
    """Installed at the device's key; of which left operands Python was asked."""
    questions: list[tuple[int, ...]] = []
    own = torch_answers.DispatcherOperators._compute_or_decline

    def answer(self: Any, a: Any, *rest: Any) -> Any:
        questions.append(tuple(a.shape))
        return own(self, a, *rest)

    for name in ("SMALL_MULTIPLY_ADDS", "SMALL_MULTIPLY_ADDS_16_BIT", "SMALL_MULTIPLY_ADDS_UNALIGNED"):
        monkeypatch.setattr(torch_install, name, 16**3)
    monkeypatch.setattr(torch_answers, "small_enough", lambda m, k, n, itemsize: m * k * n < 16**3)
    monkeypatch.setattr(torch_answers.DispatcherOperators, "_compute_or_decline", answer)
    undo = torch_install.install_at_key("CUDA" if device == "cuda" else "CPU", compiled)
    try:
        yield questions
    finally:
        undo()


# ---- the operators


def products(device: str, dtype: Any = None) -> list[tuple[str, Callable[[Any], Any]]]:
    """Calls of every operator; each takes a place for its result, or None."""
    a, b = draw_tensor(device, N, 48, dtype=dtype), draw_tensor(device, 48, 80, dtype=dtype)
    s, t = draw_tensor(device, 3, N, 48, dtype=dtype), draw_tensor(device, 3, 48, 80, dtype=dtype)
    calls: list[tuple[str, Callable[[Any], Any]]] = [
        ("mm", lambda out: torch.mm(a, b, out=out)),
        ("mm, turned", lambda out: torch.mm(b.mT, a.mT, out=out)),
        ("matmul", lambda out: torch.matmul(a, b, out=out)),
        ("bmm", lambda out: torch.bmm(s, t, out=out)),
        ("stacks", lambda out: torch.matmul(s, t, out=out)),
    ]
    for beta, alpha in ((1, 1), (1, 2.5), (0, 1), (0, -3), (0.5, 1), (2, -1.5)):
        for added in (
            draw_tensor(device, 80),
            draw_tensor(device, N, 1),
            draw_tensor(device, N, 80),
            draw_tensor(device, 1),
        ):
            x = added.to(a.dtype)
            calls += [
                (f"addmm {beta} {alpha}", addmm(x, a, b, beta, alpha)),
                (f"baddbmm {beta} {alpha}", baddbmm(x.expand(1, *x.shape) if x.dim() == 2 else x, s, t, beta, alpha)),
            ]
    return calls


def addmm(x: Any, a: Any, b: Any, beta: Any, alpha: Any) -> Callable[[Any], Any]:
    return lambda out: torch.addmm(x, a, b, beta=beta, alpha=alpha, out=out)


def baddbmm(x: Any, a: Any, b: Any, beta: Any, alpha: Any) -> Callable[[Any], Any]:
    return lambda out: torch.baddbmm(x, a, b, beta=beta, alpha=alpha, out=out)


def test_operands_may_have_torchs_names(
    device: str, compiled: bool, requested: list[Any], plans_run: list[Plan]
) -> None:
    a, b, out = draw_tensor(device, N, 48), draw_tensor(device, 48, 80), draw_tensor(device, N, 80)
    s, t, x = draw_tensor(device, 3, N, 48), draw_tensor(device, 3, 48, 80), draw_tensor(device, 80)
    calls: list[Callable[[], Any]] = [
        lambda: torch.mm(input=a, mat2=b),
        lambda: torch.mm(a, mat2=b, out=out),
        lambda: torch.matmul(input=a, other=b),
        lambda: a.matmul(other=b),
        lambda: torch.bmm(input=s, mat2=t),
        lambda: torch.addmm(input=x, mat1=a, mat2=b, beta=2),
        lambda: torch.baddbmm(input=x, batch1=s, batch2=t),
        lambda: torch.nn.functional.linear(input=a, weight=b.mT, bias=x),
    ]
    found = [call().clone() for call in calls]
    assert len(plans_run) == len(calls)
    with bypass_fmm():
        expected = [call().clone() for call in calls]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
def test_every_operator_runs_plans(
    dtype: str, device: str, compiled: bool, requested: list[Any], plans_run: list[Plan]
) -> None:
    kind = getattr(torch, dtype)
    calls = products(device, kind)
    found = [(call(None), call(torch.empty_like(call(None)))) for _, call in calls]
    assert len(plans_run) == 3 * len(calls)
    with bypass_fmm():
        expected = [call(None) for _, call in calls]
    assert len(plans_run) == 3 * len(calls)
    for (_, _), (new, written), theirs in zip(calls, found, expected, strict=True):
        for ours in (new, written):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3 if dtype == "float32" else 1e-9)


def test_nothing_is_added_of_what_is_ignored(device: str, requested: list[Any], plans_run: list[Plan]) -> None:
    """torch ignores the first operand where beta is zero, NaN and all."""
    a, nan = draw_tensor(device), torch.full((N, N), float("nan"), dtype=torch.float64, device=device)
    same(torch.addmm(nan, a, a, beta=0), a @ a)
    out = nan.clone()
    torch.addmm(nan, a, a, beta=0, alpha=2, out=out)
    same(out, 2 * (a @ a))
    x = draw_tensor(device)
    expected = x + a @ a
    same(torch.addmm(x, a, a, out=x), expected)  # the sum stands where one of its terms stood
    assert plans_run


@pytest.mark.parametrize(
    ("alpha", "beta", "in_place"),
    [(1, 1, False), (-2.5, 0.5, False), (3, 0, False), (3, 0, True), (-2.5, 0.5, True), (1, 1, True)],
)
@pytest.mark.parametrize("shape", [(N, N), (N,), (N, 1), ()], ids=["matrix", "row", "column", "number"])
def test_neither_factors_nor_what_is_added_cost_a_pass(
    alpha: float,
    beta: float,
    in_place: bool,
    shape: tuple[int, ...],
    device: str,
    requested: list[Any],
    plans_run: list[Plan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if in_place and len(shape) != 2:
        pytest.skip("the result takes the place of a matrix")
    x, a = (
        draw_tensor(device, *(shape if not in_place else ())) if shape else draw_tensor(device, 1)[0],
        draw_tensor(device),
    )
    expected, held = beta * x + alpha * (a @ a), x.clone()
    made: list[str] = []

    def counted(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def called(*operands: Any, **options: Any) -> Any:
            made.append(name)
            return own(*operands, **options)

        return called

    for name in ("add", "mul", "clone"):
        monkeypatch.setattr(torch, name, counted(name, getattr(torch, name)))
    before = len(plans_run)
    found = x.addmm_(a, a, beta=beta, alpha=alpha) if in_place else torch.addmm(x, a, a, beta=beta, alpha=alpha)
    assert (made, len(plans_run)) == ([], before + 1)
    same(found, expected)
    assert (found is x) == in_place
    assert in_place or torch.equal(x, held)


def test_conjugates_are_multiplied_as_such(device: str, requested: list[Any], plans_run: list[Plan]) -> None:
    z = draw_tensor(device, dtype=torch.complex128)
    found = torch.mm(z.mH, z), torch.mm(z.conj(), z.conj())
    assert plans_run == [LEVEL] * 2
    with bypass_fmm():
        same(found[0], z.mH @ z)
        same(found[1], z.conj() @ z.conj())


def test_unchanged_programs_have_fast_forward_and_backward_passes(
    device: str, requested: list[Any], plans_run: list[Plan]
) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(N, 48, device=device, dtype=torch.float64)
    x = draw_tensor(device, 5, 32, N).requires_grad_()

    def gradients() -> list[Any]:
        loss = layer(x).pow(2).sum()
        return [loss.detach(), *torch.autograd.grad(loss, (x, layer.weight, layer.bias))]

    ours = gradients()
    assert len(plans_run) == 3  # the product, and both of its gradients
    with bypass_fmm():
        theirs = gradients()
    for mine, its in zip(ours, theirs, strict=True):
        same(mine, its)
    squared: Any = lambda v: torch.mm(v, v)  # noqa: E731
    small = torch.nn.Linear(17, 17, device=device, dtype=torch.float64)
    y = draw_tensor(device, 17, 17).requires_grad_()
    assert torch.autograd.gradcheck(small, (y,), fast_mode=True)
    assert torch.autograd.gradgradcheck(squared, (y,), fast_mode=True)


def test_training_goes_as_without(device: str, requested: list[Any], plans_run: list[Plan]) -> None:
    from torch.utils.checkpoint import checkpoint

    def losses() -> list[float]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(32, N), torch.nn.GELU(), torch.nn.Linear(N, 32))
        model = model.to(device, torch.float64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, found = draw_tensor(device, 128, 32), []
        for _ in range(4):
            optimizer.zero_grad()
            loss = (checkpoint(model, x, use_reentrant=False) - x).pow(2).mean()
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        return found

    ours = losses()
    assert len(plans_run) >= 4 * 6
    torch.manual_seed(1)
    count = len(plans_run)
    with bypass_fmm(), torch.autograd.set_multithreading_enabled(False):
        theirs = losses()
    assert device == "cuda" or len(plans_run) == count
    assert ours == pytest.approx(theirs, rel=1e-9)


# ---- what is torch's


def test_small_products_are_not_asked_about(
    device: str, compiled: bool, requested: list[Any], plans_run: list[Plan]
) -> None:
    a = draw_tensor(device, 8, 8)
    same(torch.mm(a, a), torch.addmm(a, a, a) - a)
    torch.bmm(a[None], a[None])
    assert not plans_run
    if compiled:
        assert not requested  # C++ has declined


def test_what_was_declined_is_not_asked_about_again_for_a_moment(
    device: str, compiled: bool, requested: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        pytest.skip("Python is asked about each")
    a = torch.ones(N, N, dtype=torch.int64) if device == "cpu" else torch.ones(N, N, device=device).to_sparse()
    if device == "cuda":
        pytest.skip("no type that torch multiplies and fmm does not")
    for _ in range(3):
        assert torch.mm(a, a)[0, 0] == N
    assert len(requested) == 1
    torch.mm(a[:32, :32], a[:32, :32])  # another shape
    torch.mm(a.mT, a)  # another layout
    assert len(requested) == 3
    torch.mm(a, a.clone())  # B is no longer A
    assert len(requested) == 4
    c = torch.ones(N, N, dtype=torch.complex128)
    for left, right in ((c, c.to(torch.complex64)), (c, a), (c.conj(), a)):
        with pytest.raises(RuntimeError):
            torch.mm(left, right)  # another type of B, and another conjugate bit
    assert len(requested) == 7


def test_a_decline_because_of_out_or_the_addend_is_for_this_call_alone(
    device: str, compiled: bool, requested: list[Any], plans_run: list[Plan]
) -> None:
    a = draw_tensor(device)
    torch.mm(a, a, out=a.new_empty(0))
    with pytest.raises(RuntimeError):
        torch.addmm(a.to(torch.float32), a, a)
    assert not plans_run
    same(torch.mm(a, a, out=torch.empty_like(a)), torch.addmm(a, a, a) - a)
    assert len(plans_run) == 2


def test_a_report_counts_every_product(
    device: str, compiled: bool, requested: list[Any], plans_run: list[Plan]
) -> None:
    a = torch.ones(N, N, dtype=torch.int64) if device == "cpu" else draw_tensor(device)
    report = begin_report()
    try:
        for _ in range(3):
            torch.mm(a, a)
        torch.addmm(draw_tensor(device), draw_tensor(device), draw_tensor(device))
    finally:
        end_report()
    assert sum(report.counts.values()) == 4 and "of 4 products ran by plans" in str(report)
    assert "torch.addmm, float64, 64 x 64 by 64 x 64: strassen.batched.pad16 > vendor: for the test" in str(report)
    if device == "cpu":
        assert "3  torch.mm, int64, 64 x 64 by 64 x 64: no plan: torch multiplies: products of int64" in str(report)
    else:
        assert "torch.mm, float64, 64 x 64 by 64 x 64: strassen.batched.pad16 > vendor: for the test" in str(report)


def test_a_report_begun_later_counts_small_products_too(
    device: str, compiled: bool, requested: list[Any], plans_run: list[Plan]
) -> None:
    a = draw_tensor(device, 8, 8)
    torch.mm(a, a)
    report = begin_report()
    try:
        torch.mm(a, a)
    finally:
        end_report()
    torch.mm(a, a)
    assert list(report.counts.values()) == [1]
    if compiled:
        assert len(requested) == 1


def test_what_torch_keeps_is_counted_with_the_reason(device: str, compiled: bool, requested: list[Any]) -> None:
    a, row = draw_tensor(device), draw_tensor(device, N)
    mine = a.as_subclass(type("Mine", (torch.Tensor,), {}))
    wrong = torch.zeros(N, N, dtype=torch.float64, device=device).mT[:, :3]

    def deterministic() -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            torch.mm(a, a)
        finally:
            torch.use_deterministic_algorithms(False)

    def rejected() -> None:
        with pytest.raises(RuntimeError):
            torch.addmm(a.int(), a, a)

    calls: list[tuple[Callable[[], object], str]] = [
        (deterministic, "torch.mm, float64, 64 x 64 by 64 x 64: no plan: torch multiplies: deterministic algorithms"),
        (
            lambda: torch.mm(mine, a),
            "torch.mm, float64, 64 x 64 by 64 x 64: no plan: torch multiplies: the left operand is a",
        ),
        (
            lambda: torch.mm(a, a, out=wrong),
            "torch.mm, float64, 64 x 64 by 64 x 64: no plan: torch multiplies: out has",
        ),
        (rejected, "torch.addmm, float64, 64 x 64 by 64 x 64: no plan: torch multiplies: the addend is no plain"),
    ]
    for call, reported in calls:
        report = begin_report()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call()
        finally:
            end_report()
        assert reported in str(report) and report.build_report().by_plans == 0, str(report)
    report = begin_report()
    try:
        row.expand(N, N).contiguous().addmm_(a, a)
        torch.baddbmm(row, a[None], a[None])
    finally:
        end_report()
    assert sorted(kind.where for kind, _ in report.counts) == ["torch.addmm_", "torch.baddbmm"]
    assert report.build_report().by_plans == 2


def test_products_that_torch_answers_in_the_end_are_not_the_plans(device: str, requested: list[Any]) -> None:
    if device == "cuda":
        pytest.skip("the host looks at the numbers beforehand")
    a = torch.full((N, N), 1e200, dtype=torch.float64)
    report = begin_report()
    try:
        torch.mm(a, a)
        torch.addmm(a, a, a)
    finally:
        end_report()
    assert report.build_report().by_plans == 0 and str(report).count("sums may overflow are in its operands") == 2, str(
        report
    )


def test_what_torch_rejects_it_rejects_in_its_own_words(
    device: str, requested: list[Any], plans_run: list[Plan]
) -> None:
    a, s = draw_tensor(device), draw_tensor(device, 2, N, N)
    wrong: list[Callable[[], Any]] = [
        lambda: torch.mm(a, a[:3]),
        lambda: torch.mm(a, a.float()),
        lambda: torch.mm(a, s),
        lambda: torch.bmm(s, s[:1]),
        lambda: torch.addmm(draw_tensor(device, 3), a, a),
        lambda: torch.addmm(a.int(), a, a),
        lambda: torch.mm(a, a, out=torch.zeros(N, 1, dtype=a.dtype, device=device).expand(N, N)),
        lambda: torch.mm(a, a, out=torch.zeros(N, N, device=device, dtype=torch.int32)),
        lambda: torch.mm(a, a, out=torch.zeros(N, N, device=device, dtype=a.dtype).requires_grad_()),
    ]
    for call in wrong:
        with bypass_fmm(), pytest.raises(Exception) as theirs:
            call()
        with pytest.raises(type(theirs.value)) as ours:
            call()
        assert str(ours.value) == str(theirs.value)
    assert not plans_run


def test_an_out_of_another_shape_is_made_fit_by_torch(device: str, requested: list[Any], plans_run: list[Plan]) -> None:
    a, out = draw_tensor(device), torch.empty(0, dtype=torch.float64, device=device)
    torch.mm(a, a, out=out)
    assert out.shape == (N, N) and not plans_run
    same(out, a @ a)


def test_types_and_settings_that_are_torchs(device: str, requested: list[Any], plans_run: list[Plan]) -> None:
    a = draw_tensor(device)
    torch.mm(a.to_sparse(), a)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cuBLAS may warn of its own settings
            torch.mm(a, a)
    finally:
        torch.use_deterministic_algorithms(False)
    mine = type("Mine", (torch.Tensor,), {})
    assert type(torch.mm(a.as_subclass(mine), a)) is mine
    assert not plans_run


def test_modes_traces_and_transforms_are_as_ever(device: str, requested: list[Any], plans_run: list[Plan]) -> None:
    a, s = draw_tensor(device), draw_tensor(device, 2, N, N)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(torch.mm, (a, a), check_trace=False)
        tangent = torch.func.jvp(torch.mm, (a, a), (a, a))[1]
    same(traced(2 * a, a), 2 * a @ a)
    same(tangent, 2 * (a @ a))
    assert [node.kind() for node in traced.graph.nodes()] == ["aten::mm"]
    same(torch.func.vmap(torch.mm, in_dims=(0, None))(s, a), s @ a)
    same(torch.func.grad(lambda x: torch.mm(x, a).sum())(a), torch.ones_like(a) @ a.mT)
    with torch._subclasses.fake_tensor.FakeTensorMode():
        assert torch.mm(torch.empty(N, N), torch.empty(N, N)).shape == (N, N)
    with torch.inference_mode():
        assert torch.mm(a, a).is_inference()


def test_compiled_functions_run_plans_too(device: str, requested: list[Any], plans_run: list[Plan]) -> None:
    a = draw_tensor(device)
    try:
        compiled = torch.compile(lambda x: torch.mm(x, x).sin(), backend="aot_eager", fullgraph=True)
        found = compiled(a)
    finally:
        torch.compiler.reset()
    assert plans_run == [LEVEL]
    same(found, torch.mm(a, a).sin())


def test_what_fmm_leaves_to_torch_does_not_come_back_to_it(
    device: str, requested: list[Any], plans_run: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = draw_tensor(device)
    found = fmm.matmul(a, a, plan=VENDOR)
    assert not plans_run
    same(fmm.matmul(a, a), found)
    learned = a.clone().requires_grad_()
    fmm.matmul(learned, a, plan=VENDOR).sum()
    assert plans_run == [LEVEL]
    torch.mm(a, a)  # nor is it remembered as torch's
    assert plans_run == [LEVEL] * 2


def test_threads_multiply_side_by_side(device: str, requested: list[Any], plans_run: list[Plan]) -> None:
    a, wrong = draw_tensor(device), []
    expected = fmm.matmul(a, a, plan=VENDOR)

    def work() -> None:
        for _ in range(20):
            if not torch.allclose(torch.mm(a, a), expected):
                wrong.append("wrong")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(plans_run) == 80


def test_each_process_multiplies_its_part_of_sharded_tensors(
    requested: list[Any], device: str, plans_run: list[Plan], tmp_path: Any
) -> None:
    if device == "cuda":
        pytest.skip("one process, on the host")
    a = draw_tensor(device)
    with shards_of_one_process(a, tmp_path) as (left, right):
        c = (left @ right).full_tensor()
    assert plans_run == [LEVEL]
    same(c, fmm.matmul(a, a, plan=VENDOR))


# ---- installing


def test_uninstalled_all_is_as_it_was(device: str, compiled: bool, plans_run: list[Plan]) -> None:
    from fmm.arrays.torch_library import TORCH, TORCH_ON_HOST

    key = "CUDA" if device == "cuda" else "CPU"

    def registered() -> list[str]:
        return [
            line
            for row in TORCH_OPERATORS
            for line in torch._C._dispatch_dump(f"aten::{row.name}").splitlines()
            if line.startswith((f"{key}:", "name", "schema"))
        ]

    before, a = registered(), draw_tensor(device)
    for _ in range(3):
        undo = torch_install.install_at_key(key, compiled)
        assert registered() != before
        undo()
        assert registered() == before
    torch.mm(a, a)
    assert not plans_run
    assert TORCH.fast_vendor_product is TORCH_ON_HOST.fast_vendor_product is torch.matmul


def test_others_may_multiply_while_it_comes_and_goes(
    device: str, compiled: bool, plans_run: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread may be in a kernel that is taken out."""
    for name in ("SMALL_MULTIPLY_ADDS", "SMALL_MULTIPLY_ADDS_16_BIT", "SMALL_MULTIPLY_ADDS_UNALIGNED"):
        monkeypatch.setattr(torch_install, name, 16**3)
    monkeypatch.setattr(torch_answers, "small_enough", lambda m, k, n, itemsize: m * k * n < 16**3)
    a, b, wrong, done = draw_tensor(device), draw_tensor(device, 16, 16), [], threading.Event()
    expected = torch.mm(a, a), torch.mm(b, b)

    def work() -> None:
        while not done.is_set():
            for x, y in zip((a, b), expected, strict=True):
                if not torch.allclose(torch.mm(x, x), y):
                    wrong.append("wrong")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            undo = torch_install.install_at_key("CUDA" if device == "cuda" else "CPU", compiled)
            time.sleep(0.002)
            undo()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not wrong and plans_run


def test_torch_on_the_host_is_a_place(plans_run: list[Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_hook, "load_compiled_hook", lambda: None)
    monkeypatch.setattr(torch_answers, "small_enough", lambda m, k, n, itemsize: False)
    a = draw_tensor("cpu")
    with fmm.installed("torch-cpu"):
        torch.mm(a, a)
        assert plans_run == [LEVEL]
    torch.mm(a, a)
    assert plans_run == [LEVEL]


def test_without_a_device_nothing_is_installed(caplog: pytest.LogCaptureFixture) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    environment.log_once.cache_clear()
    before = torch._C._dispatch_dump("aten::mm")
    with fmm.installed("torch"):
        assert torch._C._dispatch_dump("aten::mm") == before
    assert "nothing is installed for torch: this torch finds no CUDA device" in caplog.text


def test_installing_touches_no_device(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A process that only starts others is not to have a context there; what is not there is said."""
    environment.log_once.cache_clear()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch_install, "find_spec", lambda name: None)
    with fmm.installed("torch"):
        pass
    assert "nothing is installed for torch: fmm's kernels need CuPy" in caplog.text
    monkeypatch.setattr(torch_install, "find_spec", lambda name: "found")
    monkeypatch.setattr(torch_hook, "load_compiled_hook", lambda: None)
    initialized = torch.cuda.is_initialized()
    if torch.backends.cuda.is_built():
        undo = torch_install.install_on_cuda()
        undo()
    else:
        with pytest.raises(CannotInstallError, match="no kernel for CUDA"):
            torch_install.install_on_cuda()
    assert torch.cuda.is_initialized() == initialized


def test_a_torch_that_hands_out_no_kernels_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.library, "get_kernel")
    with pytest.raises(CannotInstallError, match="does not provide its kernels"):
        torch_install.install_at_key("CPU")


def test_a_compiler_that_takes_long_is_not_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    monkeypatch.setattr(long_waits, "WAIT_SECONDS_BEFORE_LOG", 0.01)
    monkeypatch.setattr(long_waits, "_logged_messages", set())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slow = tmp_path / "compiler"
    slow.write_text("#!/bin/sh\nsleep 1; exit 1\n")
    slow.chmod(0o700)
    monkeypatch.setenv("CXX", str(slow))
    environment.log_once.cache_clear()
    torch_hook.load_compiled_hook.cache_clear()
    try:
        assert torch_hook.load_compiled_hook() is None
    finally:
        torch_hook.load_compiled_hook.cache_clear()
    said = f"fmm: the hook for torch {torch.__version__} is being compiled, once for this version"
    assert caplog.messages[0] == said and len(caplog.messages) == 2


def test_without_a_compiler_python_stands_in_front(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    environment.log_once.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for compiler, said in (("/no/such/compiler", "cannot be compiled"), ("false", "cannot be compiled")):
        torch_hook.load_compiled_hook.cache_clear()
        monkeypatch.setenv("CXX", compiler)
        assert torch_hook.load_compiled_hook() is None
        assert said in caplog.text
    monkeypatch.delenv("CXX")
    monkeypatch.setattr("shutil.which", lambda name: None)
    torch_hook.load_compiled_hook.cache_clear()
    assert torch_hook.load_compiled_hook() is None and "no C++ compiler" in caplog.text
    torch_hook.load_compiled_hook.cache_clear()
    assert not list(tmp_path.rglob("*.so"))
