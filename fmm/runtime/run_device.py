"""Run a prepared call on a CUDA device, with memory from the library's pool and on the library's current stream.

If C has an inf or NaN after the plan has run, the product is computed again on the device.

A call that recurs is captured as a CUDA graph. A replay of the graph is one launch instead of about five, with shorter
gaps between kernels. A graph owns no memory. If an operand, C or the workspace has another address than at the
capture, the new address is written into the graph's kernel nodes. The nodes of cuBLAS cannot be changed, so memory that
cuBLAS reads or writes (usually the workspace) must keep its address.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import nullcontext, suppress
from itertools import repeat
from typing import Any

import cupy
from cupy_backends.cuda.api import runtime

from fmm.arrays.host_memory import register_release_callback
from fmm.arrays.library import DeviceLibrary
from fmm.kernels.cuda.launch.bound_calls import run_bound_calls
from fmm.kernels.cuda.launch.cublas import StreamContext, set_handle_stream
from fmm.kernels.cuda.launch.device_facts import cuda_device_chip
from fmm.kernels.cuda.launch.graphs import GraphCache, GraphCaptures, KernelNode, UpdatableGraph
from fmm.kernels.cuda.launch.memory_errors import is_out_of_memory
from fmm.kernels.cuda.launch.player import Addresses, Player, cached_player
from fmm.kernels.cuda.launch.streams import return_capture_stream, take_capture_stream, thread_cublas_handle
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.cuda.recompute.flags import StreamFlag, stream_flag
from fmm.kernels.cuda.recompute.recompute import may_create_nonfinite
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.cuda.target import Alignment
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.block_model import chip_target
from fmm.runtime.call_record import record_fallback
from fmm.runtime.devices import chip_with_tuned_block_model, cuda_device
from fmm.runtime.prepare import PreparedCall, cublas_scratch_offset
from fmm.runtime.run_host import OutPartlyUpdatedError

GRAPH_CACHE = GraphCache()
LEGACY_STREAM = 0  # handle of CUDA's legacy stream, which cannot be captured
MAX_REUSED_PARAMETER_SETS = 16  # number of products of a stack whose launch parameters are kept for the next stack
MAX_STREAM_CALLS = 256  # number of cached calls for each stream and thread
register_release_callback(GRAPH_CACHE.clear)


def run_call(
    library: DeviceLibrary, call: PreparedCall, a: Any, b: Any, out: Any, required: bool, addend: Any = None
) -> Any:
    """Return C, computed by the call's plan on the library's current stream; None if the vendor must multiply.

    `required`: True if the caller named the plan. A required plan runs even if earlier results had inf or NaN.
    `addend`: the addend, with C's shape; None if C holds the addend.

    Raise PlanError, before any launch, if the plan cannot run on operands with this alignment. If CUDA or cuBLAS
    reports that memory ran out, raise the library's own exception; if a product may have been partly added to `out`,
    raise OutPartlyUpdatedError.
    """
    device = call.setting.device
    try:
        stream, context = library.current_stream(device)
        if context is None:
            return _run_on_stream(library, call, a, b, out, required, device, stream, addend)
        with context:
            return _run_on_stream(library, call, a, b, out, required, device, stream, addend)
    except Exception as error:
        if isinstance(error, library.out_of_memory_error) or not is_out_of_memory(error):
            raise
        raise library.out_of_memory_error(f"memory ran out on the device: {error}") from error


def _run_on_stream(
    library: DeviceLibrary,
    call: PreparedCall,
    a: Any,
    b: Any,
    out: Any,
    required: bool,
    device: int,
    stream: int,
    addend: Any = None,
) -> Any:
    """Return C, computed by the call's plan on this stream; None if the vendor must multiply.

    All memory is allocated before the first launch. If a launch fails, the library computes `out`. So `out` is either
    unchanged or complete after an exception.
    """
    if stream != LEGACY_STREAM and runtime.streamIsCapturing(stream):
        if required:
            raise PlanError(f"the plan {call.plan} cannot run while its stream is captured")
        record_fallback("its stream is being captured")
        return None  # the plan may need compilation, and the captured graph would not own the workspace
    flag = stream_flag(device, stream)
    stream_call = flag.prepared.get(id(call))
    if stream_call is None:
        stream_call = _new_stream_call(call, flag, device)
    if stream_call.is_flagged and not (required or flag.allows_plan()):
        record_fallback("recent products on its stream had inf or NaN")
        return None
    p, q, r, workspace, c, memory = library.allocate_arrays(call, a, b, out)
    if out is not None:
        library.record_array_change(out)
    try:
        at_addend = 0 if addend is None else library.data_pointer(addend)
        stream_call.run_at_addresses(p, q, r, workspace, at_addend, visible=out is not None)
    except PlanError:  # nothing was launched
        raise
    except Exception as error:
        # A launch failed: compute `out` by the library, since other launches may have written to `out`.
        if out is not None:
            with suppress(Exception):
                _compute_by_vendor_after_failure(library, call, a, b, out, addend)
            if addend is None and stream_call.launches.problem.beta and is_out_of_memory(error):
                raise OutPartlyUpdatedError("memory ran out while a product was added to out") from error
        raise
    del memory  # memory is freed in stream order, so the next launch on the stream may use this workspace
    return c


def run_operand_preparation(library: DeviceLibrary, launches: LaunchList, pointer: int, device: int) -> None:
    """Run the launches that prepare the operand at this address, on the library's current stream, and wait for them."""
    from fmm.arrays.cupy_library import stream_at_address

    stream, context = library.current_stream(device)
    with context or nullcontext():
        if stream != LEGACY_STREAM and runtime.streamIsCapturing(stream):
            raise PlanError("nothing can be prepared while its stream is captured")
        with cupy.cuda.Device(device), stream_at_address(stream):  # CuPy reuses memory in the order of this stream
            workspace = cupy.cuda.alloc(launches.workspace)
        cached_player(launches, device).launch_all(Addresses(pointer, pointer, 0, workspace.ptr), stream)
        runtime.streamSynchronize(stream)


def run_timed_product(library: DeviceLibrary, call: PreparedCall, multiply: Callable[[Plan], Any]) -> Any:
    """Return one product, timed by the OnlineTrial of its shape.

    While the stream is captured, return the vendor's product without a timing.
    """
    if _is_capturing(library, call):
        return multiply(VENDOR)
    stream, _ = library.current_stream(call.setting.device)
    assert call.decision.trial is not None
    return call.decision.trial.run_product(multiply, lambda: runtime.streamSynchronize(stream))


def run_and_time_first_product(
    library: DeviceLibrary, call: PreparedCall, multiply: Callable[[Plan], Any], max_seconds: float
) -> None:
    """Before the first large product of an element type, run the products that compare a plan with the vendor.

    While the stream is captured, nothing is done.
    """
    if _is_capturing(library, call):
        return
    stream, _ = library.current_stream(call.setting.device)
    assert call.decision.trial is not None
    call.decision.trial.run_all_products(multiply, lambda: runtime.streamSynchronize(stream), max_seconds)


def _is_capturing(library: DeviceLibrary, call: PreparedCall) -> bool:
    """Return True while the library's current stream is captured as a CUDA graph, and its launches do not run."""
    stream, _ = library.current_stream(call.setting.device)
    return stream != LEGACY_STREAM and bool(runtime.streamIsCapturing(stream))


def _compute_by_vendor_after_failure(
    library: DeviceLibrary, call: PreparedCall, a: Any, b: Any, out: Any, addend: Any
) -> None:
    """Compute C by the library's own functions, after a launch of the plan has failed.

    If the result depends on the old values of C, do nothing: launches of the plan may have overwritten the old values.
    """
    problem = call.launches.problem if call.launches else None
    if problem is None or call.launches is None or any(call.launches.plan.conjugated_operands):
        return
    if problem.op == "gram" and b is a:  # `b` is `a` and not the adjoint; run_recurring_gram computes the result
        return
    alpha = problem.alpha
    if addend is not None:
        library.vendor_gemm(a, b, out, alpha, problem.beta, addend)
    elif problem.beta:
        return
    elif problem.writes_triangle:
        library.write_triangle(library.vendor_product(a, b), out, complex(alpha).real, 0.0, problem.fill)
    elif alpha != 1:
        library.vendor_gemm(a, b, out, alpha, 0)
    else:
        library.vendor_product(a, b, out)


# ---- a call on one stream


def _new_stream_call(call: PreparedCall, flag: StreamFlag, device: int) -> StreamCall:
    if len(flag.prepared) >= MAX_STREAM_CALLS:
        flag.prepared.clear()
    created = flag.prepared[id(call)] = StreamCall(call, flag, device)
    return created


class StreamCall:
    """A prepared call of one thread on one stream, with all launch arguments except the addresses."""

    def __init__(self, call: PreparedCall, flag: StreamFlag, device: int) -> None:
        assert call.launches is not None
        self.call = call  # this reference keeps the call alive, so the key id(call) is unique
        self.stream, self.device = flag.stream, device
        self.launches = call.launches
        # True if launches check C for inf and NaN; if C has an inf or NaN, the device then computes C again
        self.is_flagged = may_create_nonfinite(call.launches.plan)
        self.flag_addresses = (flag.address, flag.count_address) if self.is_flagged else (0, 0)
        self.scratch = cublas_scratch_offset(call.launches)
        self.replays = GraphCaptures(self._capture_graph, GRAPH_CACHE) if call.uses_graph else None
        self._latest: Hashable = None  # key of the last replay, which is tried first, since addresses usually recur
        self._players: dict[Alignment, Player | str] = {}  # the player, or why the plan cannot run
        # The Player that runs the launches of a call with a single product, for aligned addresses. Memory pools return
        # only aligned addresses.
        self._single: Player | None = None
        # for each alignment, the indices (in `Addresses`) of the addresses that vendor calls read or write
        self._fixed: dict[Alignment, tuple[int, ...]] = {}

    def run_at_addresses(self, *bases: int, visible: bool = True) -> None:
        """Run the call with A, B, C, the workspace and the addend at these addresses.

        `visible`: True if C is the caller's array, which an exception must not leave incomplete.
        """
        if self.replays is not None:
            replay = self.replays.captured.get(self._latest)
            if type(replay) is not _GraphReplay or replay.bases != bases:
                replay = self._find_replay(bases)
            if replay is not None:
                runtime.graphLaunch(replay.graph.executable, self.stream)
                return
        addresses = self._launch_addresses(bases)
        if self._single is not None and addresses.is_aligned:
            self._single.launch_all(addresses, self.stream)
        else:
            self._launch_products(addresses, self.stream, visible)

    def _launch_addresses(self, bases: tuple[int, ...]) -> Addresses:
        return Addresses(*bases[:4], *self.flag_addresses, *bases[4:])

    def _find_replay(self, bases: tuple[int, ...]) -> _GraphReplay | None:
        """Return the call's captured graph, after these addresses have been written into its nodes.

        Return None if no graph of this call has been captured yet, or if CUDA cannot change the graph's nodes.
        """
        assert self.replays is not None
        addresses = self._launch_addresses(bases)
        key = self._latest = self._replay_key(addresses)
        replay: _GraphReplay | None = self.replays.find_capture(key, addresses)
        return (
            replay if replay is not None and (replay.bases == bases or replay.set_graph_addresses(addresses)) else None
        )

    def player_for_alignment(self, alignment: Alignment) -> Player:
        """Return the player of the call's plan, recorded for this alignment of the addresses."""
        found = self._players.get(alignment)
        if found is None:
            chip = chip_with_tuned_block_model(cuda_device(self.device)) or cuda_device_chip(self.device)
            target = chip_target(chip, alignment, self.is_flagged)
            try:
                launches = record_launches(self.launches.plan, self.launches.problem, target)
                found = cached_player(launches, self.device)
            except PlanError as error:  # for example, a cuBLASLt kernel may require aligned rows
                found = f"the plan {self.launches.plan} cannot run here: {error}"
            self._players[alignment] = found
        if isinstance(found, str):
            raise PlanError(found)
        return found

    def _product_players(self, addresses: Addresses) -> Iterator[tuple[Player, Addresses]]:
        """Yield the Player (which runs the launches) and the addresses of each product of the call."""
        a, b, c, workspace, flag, count, d = addresses
        for (x, y, z), w in zip(self.call.offsets, self.call.addend_offsets or repeat(0), strict=False):
            own = addresses
            if x | y | z | w:
                own = Addresses(a + x, b + y, c + z, workspace, flag, count, d + w)
            yield self.player_for_alignment(own.alignment), own

    def _replay_key(self, addresses: Addresses) -> Hashable:
        """Return the cache key of a graph.

        The key contains the alignment of all addresses. The key also contains the addresses that vendor calls read or
        write, because the graph's nodes of vendor calls cannot be changed.
        """
        alignment = addresses.alignment
        fixed = self._fixed.get(alignment)
        if fixed is None:
            fixed = self._fixed[alignment] = self.player_for_alignment(alignment).launches.vendor_bases
        aligned = alignment if len(self.call.offsets) == 1 else tuple(x % 256 for x in addresses.memory_addresses)
        return aligned, *[addresses[i] for i in fixed]

    def _launch_products(self, addresses: Addresses, stream: int, visible: bool) -> None:
        """Launch all products of the call.

        If C is the caller's array (`visible`), all launches are prepared before the first launch, so that an exception
        leaves C unchanged.
        """
        products = list(self._product_players(addresses))  # raises PlanError before the first launch
        if len(products) == 1 and addresses.is_aligned and products[0][1] is addresses:
            self._single = products[0][0]
        if len(products) == 1 or not visible:
            for player, own in products:
                player.launch_all(own, stream)
            return
        prepared = [player.prepare_calls(own, stream) for player, own in products]
        run_bound_calls([call for calls, _ in prepared for call in calls])
        for _, give_back in prepared[:MAX_REUSED_PARAMETER_SETS]:
            give_back()

    def _capture_graph(self, addresses: Addresses) -> _GraphReplay | None:
        """Return the launches as a graph, captured on a private stream.

        Return None if the driver refuses the capture, if cuBLAS needs more memory than the call reserved, or if memory
        for the counters or the stream runs out.
        """
        products = list(self._product_players(addresses))
        if any(player.launches.vendor_stream_count > self.launches.vendor_stream_count for player, _ in products):
            return None
        try:
            counters = {player: player.new_counters(self.stream) for player, _ in products}
            if any(counters.values()):
                runtime.streamSynchronize(self.stream)  # waits until the new counters are filled with zeros
            stream = take_capture_stream(self.device)
        except RuntimeError:
            return None
        try:
            try:
                stream.begin_capture()
                for player, own in products:
                    player.launch_all(own, stream.ptr, counters[player], addresses.workspace + self.scratch)
            finally:
                graph = stream.end_capture()
        except RuntimeError:
            return None
        finally:
            if self.launches.vendor_stream_count:  # later captures may use the private stream
                set_handle_stream(StreamContext(thread_cublas_handle(self.device), self.stream, 0))
            return_capture_stream(self.device, stream)
        return _GraphReplay(self, graph, addresses, counters)

    def kernel_nodes(self, addresses: Addresses, counters: dict[Player, tuple[int, ...]]) -> Iterator[KernelNode]:
        """Yield the graph nodes of fmm's own kernels for these addresses, in the order of the launches."""
        for player, own in self._product_players(addresses):
            yield from player.kernel_nodes(own, counters[player])


class _GraphReplay:
    """A call's captured graph, and the addresses of A, B, C and the workspace in the graph's nodes."""

    def __init__(
        self, call: StreamCall, graph: Any, addresses: Addresses, counters: dict[Player, tuple[int, ...]]
    ) -> None:
        self.call, self.counters = call, counters
        # The addresses in the graph's nodes; None after a failed update, since some nodes may have new addresses and
        # other nodes old addresses.
        self.bases: tuple[int, ...] | None = addresses.memory_addresses
        self.graph = UpdatableGraph(graph, call.kernel_nodes(addresses, counters))

    def set_graph_addresses(self, addresses: Addresses) -> bool:
        """Write these addresses into the graph's nodes; return True on success.

        A graph that cannot be updated keeps its addresses.
        """
        if not self.graph.is_updatable:
            return False
        self.bases = None
        if self.graph.update_parameters(self.call.kernel_nodes(addresses, self.counters)):
            self.bases = addresses.memory_addresses
        return self.bases is not None
