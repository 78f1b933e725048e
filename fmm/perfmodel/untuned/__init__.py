"""Calibrations of devices that nobody tuned: built in for a processor, from its datasheet for a GPU."""
