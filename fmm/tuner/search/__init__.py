"""Searching a shape's fastest plan: the space of plans, and the race."""
