"""Installing and uninstalling: the very objects come back, however often, nested and in however many threads."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

import fmm
from fmm.config import environment
from fmm.integrations import install_targets, on_import
from fmm.integrations.install_targets import CannotInstallError, InstallTarget
from fmm.integrations.product_functions import ReplacementFunction, attributes_bound_to, replace_attributes
from tests.support.threads import at_once

np: Any = numpy
DOT = np.dot


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    environment.log_once.cache_clear()
    yield
    fmm.uninstall()
    assert np.dot is DOT


def test_the_very_objects_come_back() -> None:
    multi_dot: Any = np.linalg.multi_dot
    inside: Any = sys.modules[multi_dot._implementation.__globals__["__name__"]]
    owners = np, np.linalg, inside
    before = {(owner.__name__, name): value for owner in owners for name, value in vars(owner).items()}
    fmm.install("numpy")
    assert np.dot is not DOT and inside.dot is np.dot
    fmm.install("numpy")  # once is enough
    fmm.uninstall("numpy")
    after = {(owner.__name__, name): value for owner in owners for name, value in vars(owner).items()}
    assert before.keys() == after.keys() and all(after[key] is value for key, value in before.items())
    fmm.uninstall("numpy")  # nothing is there to be undone


def test_nested_and_kept() -> None:
    with fmm.installed("numpy"):
        ours = np.dot
        assert ours is not DOT
        with fmm.installed("numpy"):
            assert np.dot is ours
        assert np.dot is ours
        fmm.uninstall()  # ends what install began, and nothing did
        assert np.dot is ours
        fmm.install("numpy")
    assert np.dot is ours
    with pytest.raises(ZeroDivisionError), fmm.installed("numpy"):
        raise ZeroDivisionError
    assert np.dot is ours
    fmm.uninstall()
    assert np.dot is DOT


@pytest.mark.parametrize("function", [fmm.install, fmm.uninstall, fmm.installed], ids=lambda f: str(f.__name__))
@pytest.mark.parametrize("value", ["foo", "NumPy", "", None, 3, ["numpy"], numpy])
def test_what_fmm_does_not_know_is_an_error_at_once(function: Any, value: Any) -> None:
    """An unknown name raises at the call, not only in the `with` statement, and installs nothing."""
    with pytest.raises(ValueError) as caught:
        function("numpy", value)
    assert str(caught.value).startswith(f"fmm cannot be installed in {value!r}; valid: torch, ")
    assert np.dot is DOT


def test_installed_waits_until_it_is_entered_and_decorates_functions() -> None:
    prepared = fmm.installed("numpy")
    assert np.dot is DOT
    with prepared:
        assert np.dot is not DOT

    @fmm.installed("numpy")
    def work() -> bool:
        return np.dot is not DOT

    assert work() and np.dot is DOT and work()


def test_ctrl_c_while_something_is_being_installed_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing may take seconds of compilation."""

    def get_in() -> None:
        raise KeyboardInterrupt

    slow = InstallTarget("numpy", "slow", "get_in")
    monkeypatch.setitem(sys.modules, "slow", SimpleNamespace(get_in=get_in))
    monkeypatch.setitem(install_targets.INSTALL_TARGETS, "slow", slow)
    with pytest.raises(KeyboardInterrupt), fmm.installed("numpy", "slow"):
        pass
    assert not slow.is_target_selected and np.dot is DOT


def test_many_threads_install_and_multiply() -> None:
    a = np.arange(12.0).reshape(3, 4)
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(200):
            with fmm.installed("numpy"):
                if np.dot is DOT or np.dot(a, a.T).tolist() != (a @ a.T).tolist():
                    wrong.append("inside")

    at_once([work] * 4)
    assert not wrong and np.dot is DOT


def test_unknown_names_are_an_error_and_change_nothing() -> None:
    for call in (fmm.install, fmm.uninstall, lambda *names: fmm.installed(*names).__enter__()):
        with pytest.raises(
            ValueError,
            match=r"cannot be installed in 'pandas'.*valid: torch, torch-cpu, torch-inductor, cupy, numpy, scipy",
        ):
            call("numpy", "pandas")


def test_likely_words_are_hinted_at() -> None:
    cases = [
        (
            ("numpy,torch",),
            r"'numpy,torch'; valid: .*; did you mean 'numpy', 'torch'\? \(separate words",
        ),
        (("NumPy",), r"'NumPy'; valid: .*; did you mean 'numpy'\? .*lower case\)$"),
        (("Torch, CuPy", "numpy"), "did you mean 'torch', 'cupy'"),
        (("pandas,numpy",), "torch-inductor, cupy, numpy, scipy$"),
    ]
    for names, reported in cases:
        with pytest.raises(ValueError, match=reported):
            fmm.install(*names)


def test_install_returns_what_is_installed_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(install_targets.INSTALL_TARGETS, "absent", InstallTarget("no_such_library", "no_such_module"))
    assert fmm.install("absent") == ()
    assert fmm.install("numpy") == fmm.install("numpy", "absent") == ("numpy",)
    assert fmm.install("absent") == ("numpy",)  # from before
    fmm.uninstall("absent", "numpy")
    with fmm.installed("numpy"):
        assert fmm.install("absent") == ("numpy",)
    assert fmm.install("absent") == ()
    fmm.uninstall("absent")


def test_uninstalling_what_a_with_statement_holds_says_that_it_stays(caplog: pytest.LogCaptureFixture) -> None:
    reported = ["fmm: nothing is uninstalled for numpy while a block `with fmm.installed` runs"]
    with caplog.at_level(logging.WARNING, "fmm"), fmm.installed("numpy"):
        fmm.install("numpy")
        fmm.uninstall("numpy")  # a pair of its own
        assert not caplog.records
        fmm.uninstall()
        fmm.uninstall("numpy")
        assert np.dot is not DOT
    assert [record.getMessage() for record in caplog.records] == reported and np.dot is DOT


def test_what_the_environment_names_is_installed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(install_targets.INSTALL_VARIABLE, " numpy ,")
    install_targets.install_from_env()
    assert np.dot is not DOT
    fmm.uninstall()
    monkeypatch.setenv(install_targets.INSTALL_VARIABLE, "nunpy")
    with caplog.at_level(logging.WARNING, "fmm"):
        install_targets.install_from_env()  # a job does not end because of it
    assert "FMM_INSTALL: fmm cannot be installed in 'nunpy'; valid: torch, torch-cpu" in caplog.text
    monkeypatch.setenv(install_targets.INSTALL_VARIABLE, "typo,numpy,other")
    with caplog.at_level(logging.WARNING, "fmm"):
        for _ in range(2):
            install_targets.install_from_env()
    assert np.dot is not DOT
    assert caplog.text.count("fmm cannot be installed in 'typo', 'other'; valid: ") == 1


# ---- what cannot be installed


def test_an_install_that_cannot_work_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    absent = InstallTarget("no_such_library", "fmm.integrations.numpy_functions")
    refusing = InstallTarget("numpy", "refusing", "get_in")
    another = InstallTarget("numpy", "refusing", "get_into_another")

    def get_in() -> None:
        raise CannotInstallError("not here")

    def get_into_another() -> None:
        raise AttributeError("no dot")

    ours = SimpleNamespace(get_in=get_in, get_into_another=get_into_another)
    monkeypatch.setitem(sys.modules, "refusing", ours)
    for name, place in (("absent", absent), ("refusing", refusing), ("another", another)):
        monkeypatch.setitem(install_targets.INSTALL_TARGETS, name, place)
    with caplog.at_level(logging.WARNING, "fmm"):
        for _ in range(2):
            fmm.install("absent", "refusing", "another")
            fmm.uninstall("absent", "refusing", "another")
    assert [record.getMessage() for record in caplog.records] == [
        "fmm: nothing is installed for no_such_library: no library of this name can be imported",
        "fmm: nothing is installed for numpy: not here",
        "fmm: nothing is installed for numpy: AttributeError: no dot",
    ]


def test_nothing_is_said_of_libraries_that_nobody_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Missing default libraries log nothing: stderr must not differ on machines without torch."""
    monkeypatch.setitem(install_targets.INSTALL_TARGETS, "torch", InstallTarget("no_such_library", "nowhere"))
    monkeypatch.setattr(install_targets, "DEFAULT_TARGET_NAMES", ("torch", "numpy"))
    with caplog.at_level(logging.WARNING, "fmm"), fmm.installed():
        assert np.dot is not DOT
        fmm.install()
        fmm.uninstall()
    assert not caplog.records


# ---- libraries that are loaded later


def test_a_library_is_changed_when_it_is_loaded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "later_library.py").write_text("def product(): return 'its own'\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = SimpleNamespace(
        install=lambda: replace_attributes([(sys.modules["later_library"], "product", lambda: "by fmm")]),
    )
    monkeypatch.setitem(sys.modules, "later_integration", module)
    monkeypatch.setitem(install_targets.INSTALL_TARGETS, "later", InstallTarget("later_library", "later_integration"))
    fmm.install("later")
    assert "later_library" not in sys.modules
    later_library: Any = import_module("later_library")
    try:
        assert later_library.product() == "by fmm"
        assert type(later_library.__spec__.loader).__module__ != on_import.__name__
        assert later_library.__loader__ is later_library.__spec__.loader
        assert on_import._CALLBACK_FINDER not in sys.meta_path
        fmm.uninstall("later")
        assert later_library.product() == "its own"
    finally:
        del sys.modules["later_library"]


def test_who_no_longer_wants_it_when_it_is_loaded_is_left_alone(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "later_library.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(install_targets.INSTALL_TARGETS, "later", InstallTarget("later_library", "no_such_integration"))
    with fmm.installed("later"):
        pass
    later_library = import_module("later_library")
    assert later_library.__name__ == "later_library"
    del sys.modules["later_library"]


@pytest.mark.parametrize("name", ["installed_before", "first_installed_now"])
def test_a_library_that_another_thread_is_loading_is_not_waited_for(name: str, tmp_path: Any, monkeypatch: Any) -> None:
    """Waiting under the lock for another thread's import would be a deadlock."""
    (tmp_path / f"{name}.py").write_text(
        "import sys, threading\nsys.loading.set()\nsys.go_on.wait(10)\ndef product(): return 'its own'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loading, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(sys, "loading", loading, raising=False)
    monkeypatch.setattr(sys, "go_on", go_on, raising=False)

    def get_in() -> Any:
        library = import_module(name)
        return replace_attributes([(library, "product", lambda: "by fmm")])

    monkeypatch.setitem(sys.modules, "slow_integration", SimpleNamespace(install=get_in))
    monkeypatch.setitem(install_targets.INSTALL_TARGETS, "slow", InstallTarget(name, "slow_integration"))
    if name == "installed_before":
        fmm.install("slow")
    importing = threading.Thread(target=import_module, args=(name,), daemon=True)
    importing.start()
    assert loading.wait(10)
    installing = threading.Thread(target=fmm.install, args=("slow",), daemon=True)
    installing.start()
    installing.join(5)
    assert not installing.is_alive()
    go_on.set()
    importing.join(5)
    assert not importing.is_alive()
    for thread in threading.enumerate():
        if thread.name == on_import.WAITING_THREAD_NAME:
            thread.join(5)
    try:
        assert sys.modules[name].product() == "by fmm"
        fmm.uninstall("slow")
        assert sys.modules[name].product() == "its own"
        fmm.install("slow")
        assert sys.modules[name].product() == "by fmm"
    finally:
        fmm.uninstall("slow")
        del sys.modules[name]


def test_a_library_that_cannot_be_loaded_while_fmm_is_installed_is_not_loaded_again(
    tmp_path: Any, monkeypatch: Any
) -> None:
    (tmp_path / "failing_library.py").write_text(
        "import sys, fmm\nsys.attempts.append(1)\nfmm.install('failing')\nraise ImportError('for the test')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "attempts", [], raising=False)
    monkeypatch.setitem(install_targets.INSTALL_TARGETS, "failing", InstallTarget("failing_library", "no_integration"))
    with pytest.raises(ImportError, match="for the test"):
        import_module("failing_library")
    for thread in threading.enumerate():
        if thread.name == on_import.WAITING_THREAD_NAME:
            thread.join(5)
            assert not thread.is_alive()
    fmm.uninstall("failing")
    on_import.run_import_callbacks("failing_library")  # no callback waits for the next test
    assert len(sys.attempts) == 1 and "failing_library" not in sys.modules  # type: ignore[attr-defined]


def test_a_library_half_loaded_by_its_own_import_is_left_alone_until_then(tmp_path: Any, monkeypatch: Any) -> None:
    """One awaited library imports another; the end of the inner import does not end the outer one."""
    (tmp_path / "outer_library.py").write_text("import inner_library\ndef product(): return 'its own'\n")
    (tmp_path / "inner_library.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[list[str]] = []

    def get_in() -> Any:
        seen.append(sorted(vars(sys.modules["outer_library"])))
        return replace_attributes([(sys.modules["outer_library"], "product", lambda: "by fmm")])

    integration = SimpleNamespace(install=get_in, nothing=lambda: lambda: None)
    monkeypatch.setitem(sys.modules, "nested_integration", integration)
    monkeypatch.setitem(install_targets.INSTALL_TARGETS, "outer", InstallTarget("outer_library", "nested_integration"))
    monkeypatch.setitem(
        install_targets.INSTALL_TARGETS, "inner", InstallTarget("inner_library", "nested_integration", "nothing")
    )
    fmm.install("outer", "inner")
    outer: Any = import_module("outer_library")
    try:
        assert len(seen) == 1 and "product" in seen[0] and outer.product() == "by fmm"
    finally:
        fmm.uninstall("outer", "inner")
        for name in ("outer_library", "inner_library"):
            del sys.modules[name]


def test_a_library_that_may_not_be_imported_is_absent(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "forbidden_library", None)
    monkeypatch.setitem(
        install_targets.INSTALL_TARGETS,
        "forbidden",
        InstallTarget("forbidden_library", "fmm.integrations.numpy_functions"),
    )
    with caplog.at_level(logging.WARNING, "fmm"):
        fmm.install("forbidden")
    assert [r.getMessage() for r in caplog.records] == [
        "fmm: nothing is installed for forbidden_library: no library of this name can be imported"
    ]
    fmm.uninstall("forbidden")


@pytest.mark.filterwarnings("ignore::ImportWarning")
def test_finders_of_an_older_kind_are_passed_over(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "later_library.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    older = SimpleNamespace(find_module=lambda *_: None)
    monkeypatch.setattr(sys, "meta_path", [older, *sys.meta_path])
    monkeypatch.setitem(sys.modules, "empty_integration", SimpleNamespace(install=lambda: lambda: None))
    monkeypatch.setitem(install_targets.INSTALL_TARGETS, "later", InstallTarget("later_library", "empty_integration"))
    fmm.install("later")
    import_module("later_library")
    assert install_targets.INSTALL_TARGETS["later"].undo is not None
    fmm.uninstall("later")
    del sys.modules["later_library"]


# ---- names and objects


def test_another_ones_replacement_is_not_undone() -> None:
    owner = SimpleNamespace(product="first")
    undo = replace_attributes([(owner, "product", "ours"), (owner, "other", "ours")])
    owner.product = "somebody else's"
    undo()
    assert vars(owner) == {"product": "somebody else's"}


def test_what_came_from_an_ancestor_comes_from_it_again() -> None:
    class Base:
        def product(self) -> str:
            return "base"

    class Derived(Base):
        pass

    undo = replace_attributes([(Derived, "product", lambda self: "ours")])
    assert Derived().product() == "ours"
    undo()
    assert "product" not in vars(Derived) and Derived().product() == "base"


def test_if_one_cannot_be_put_none_is() -> None:
    owner = SimpleNamespace(product="first")
    with pytest.raises(TypeError):
        replace_attributes([(owner, "product", "ours"), (int, "product", "ours")])
    assert owner.product == "first"


@pytest.mark.parametrize("name", ["dot", "matmul", "tensordot"])
def test_a_class_binds_a_replacement_as_it_binds_the_original(name: str) -> None:
    """numpy.dot becomes a method, but numpy.matmul, a ufunc, does not."""
    own = getattr(np, name)
    replaced = ReplacementFunction(own, lambda *operands: operands)
    theirs, ours = (type("Holder", (), {"product": function})() for function in (own, replaced))
    assert vars(type(ours))["product"] is getattr(type(ours), "product") is replaced  # noqa: B009
    assert ours.product(1) == ((ours, 1) if hasattr(theirs.product, "__self__") else (1,))


def test_a_replaced_function_is_like_the_one_it_stands_for() -> None:
    replaced = ReplacementFunction(np.matmul, lambda *operands: "ours")
    assert replaced(1, 2) == "ours" and replaced.nin == np.matmul.nin and replaced.__name__ == "matmul"
    assert replaced.__doc__ == np.matmul.__doc__ and replaced.__wrapped__ is np.matmul
    owner = SimpleNamespace(a=np.matmul, b=DOT, c=np.matmul)
    assert attributes_bound_to(np.matmul, owner) == [(owner, "a"), (owner, "c")]
