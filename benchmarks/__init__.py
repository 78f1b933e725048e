"""Benchmarks that write results/."""
