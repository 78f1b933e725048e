"""The tuner, which is the command fmm-tune: it measures a device, fits the model to it, and writes its config."""
