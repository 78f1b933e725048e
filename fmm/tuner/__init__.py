"""The tuner (command fmm-tune) measures a device, fits the performance model to the samples, and writes a config."""
