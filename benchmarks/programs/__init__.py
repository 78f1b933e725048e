"""Programs of others, each plain and under `python -m fmm`: `python -m benchmarks programs`."""
