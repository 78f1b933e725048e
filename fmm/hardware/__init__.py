"""Data about GPUs: compute capabilities, datasheets, occupancy, chips and the links between devices."""
