"""Devices as the runtime knows them, without any being there."""

from fmm.runtime.devices import described_gpu
from tests.support import chips

H200 = described_gpu("NVIDIA H200", "9.0", 132, chip=chips.H200)
