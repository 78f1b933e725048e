"""The runtime's descriptions of devices that are not there."""

from fmm.runtime.devices import gpu_from_description
from tests.support import chips

H200 = gpu_from_description("NVIDIA H200", "9.0", 132, chip=chips.H200)
