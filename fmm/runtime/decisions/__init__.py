"""The decision between a plan and the vendor, its limits, the calibration in force, and early declines."""
