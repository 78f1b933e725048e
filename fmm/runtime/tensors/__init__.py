"""Calls on torch's tensors: what torch does to them besides multiplying, gradients, and compiled graphs."""
