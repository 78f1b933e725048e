"""Playing launches of our own kernels alone, one after the other on one stream: shortest paths are such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fmm.kernels.cuda.launch.compile import compile_kernels
from fmm.kernels.cuda.launch.kernel_call import KernelCall
from fmm.kernels.cuda.launch.prepared_calls import make_calls
from fmm.kernels.cuda.launch_list import Launch


class LaunchRun:
    """Launches made ready for one device. Several threads may play them at once, since nothing in here changes."""

    def __init__(self, launches: Sequence[Launch], device: int) -> None:
        compile_kernels(device, {launch.kernel for launch in launches})
        self.calls = [KernelCall(launch, device) for launch in launches]
        starts = np.cumsum([0, *(len(call.words) for call in self.calls)])[:-1]
        self._words = np.concatenate([call.words for call in self.calls] or [np.empty(0, np.int64)])  # all parameters
        self._starts = starts  # the word at which those of each launch begin
        self.bases = tuple(dict.fromkeys(slot.base for launch in launches for slot in launch.slots))
        numbers = {base: i for i, base in enumerate(self.bases)}
        slots = [
            (start + slot.word, numbers[slot.base], slot.offset)
            for start, launch in zip(starts, launches, strict=True)
            for slot in launch.slots
        ]
        columns = np.array(slots, np.int64).reshape(-1, 3).T
        self._slots, self._numbers, self._offsets = columns[0].astype(np.intp), columns[1].astype(np.intp), columns[2]

    def play(self, addresses: Mapping[str, int], stream: int) -> None:
        """Launch all of them on the current device; the driver copies the parameters while it is called."""
        words = self._words.copy()
        by_number = np.array([addresses[base] for base in self.bases], np.int64)
        words[self._slots] = by_number[self._numbers] + self._offsets
        pointers = words.ctypes.data + 8 * self._starts.astype(np.int64)
        first_pointer = pointers.ctypes.data
        make_calls([call.start(stream, first_pointer + 8 * i, 0) for i, call in enumerate(self.calls)])
