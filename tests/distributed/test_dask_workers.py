"""fmm on the workers of a cluster: present, future and restarted ones."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from importlib import import_module
from typing import Any

import numpy as np
import pytest

pytest.importorskip("dask.array", reason="Dask is not installed")
distributed = pytest.importorskip("distributed", reason="Dask's distributed is not installed")
products = import_module("fmm.dask")

KIND_OF_DOT = "type(__import__('numpy').dot).__name__"


@pytest.mark.slow
def test_a_worker_has_fmm_where_it_is_loaded_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `FMM_INSTALL=numpy dask worker --preload fmm` has it."""
    monkeypatch.setenv("FMM_INSTALL", "numpy")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, preload=["fmm"]) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert kinds_of_dot(client) == {"ReplacementFunction"}


def kinds_of_dot(client: Any) -> set[str]:
    """Return the class of numpy.dot on all workers: fmm's, or NumPy's own."""
    return set(client.run(eval, KIND_OF_DOT).values())


@pytest.mark.slow
def test_workers_that_are_started_again_or_join_later_have_fmm() -> None:
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        products.install(client, "numpy")
        products.install(client, "numpy")  # which changes nothing
        assert kinds_of_dot(client) == {"ReplacementFunction"}
        (lost,) = client.run(os.getpid).values()
        os.kill(lost, signal.SIGKILL)
        while client.submit(os.getpid, pure=False).result(timeout=120) == lost:
            time.sleep(0.01)
        assert kinds_of_dot(client) == {"ReplacementFunction"}
        cluster.scale(2)
        client.wait_for_workers(2, timeout=120)
        assert kinds_of_dot(client) == {"ReplacementFunction"}
        products.uninstall(client)
        products.uninstall(client, "numpy")  # nor does this
        assert kinds_of_dot(client) == {"_ArrayFunctionDispatcher"}


@pytest.mark.slow
def test_workers_of_one_process_hold_it_together() -> None:
    """The last worker of a process restores NumPy's function; clients may be asynchronous."""
    own = np.dot

    async def installed_and_gone() -> None:
        workers = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
        async with (
            distributed.LocalCluster(**workers, asynchronous=True) as cluster,
            distributed.Client(cluster, asynchronous=True) as client,
        ):
            await products.install(client, "numpy")
            assert np.dot is not own
            await client.retire_workers([cluster.workers[0].address])
            await cluster.workers[0].finished()
            assert np.dot is not own
            with pytest.raises(ValueError, match="jax"):
                products.install(client, "jax")
            await products.uninstall(client)
            assert np.dot is own
            await products.install(client, "numpy")
        assert np.dot is own

    asyncio.run(installed_and_gone())


@pytest.mark.slow
def test_uninstalling_is_silent_also_where_nothing_is_installed() -> None:
    """Dask logs an error for each absent plugin that is unregistered, so fmm unregisters present ones alone."""
    reported: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: reported.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("distributed").addHandler(handler)
    try:
        with inside_one_process() as cluster, distributed.Client(cluster) as client:
            own = np.dot
            products.install(client, "numpy")
            assert np.dot is not own
            for _ in range(2):
                products.uninstall(client)
                assert np.dot is own
            products.uninstall(client, "numpy", "torch")
    finally:
        logging.getLogger("distributed").removeHandler(handler)
    assert not reported


@pytest.mark.slow
def test_what_is_no_open_client_is_refused_in_words() -> None:
    calls = [
        lambda client: products.install(client, "numpy"),
        products.install,
        products.uninstall,
    ]
    with inside_one_process() as cluster:
        with distributed.Client(cluster) as closed:
            pass
        for call in calls:
            for wrong in (None, "x", cluster):
                with pytest.raises(
                    TypeError, match=f"^client must be an open distributed.Client.*not {type(wrong).__name__}$"
                ):
                    call(wrong)
            with pytest.raises(ValueError, match=r"^client must be an open distributed.Client; .* closed$"):
                call(closed)


def inside_one_process() -> Any:
    return distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None)
