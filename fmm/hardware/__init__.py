"""GPUs as data: compute capabilities and datasheets, occupancy, a device as a value, and links between devices."""
