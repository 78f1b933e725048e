"""The performance model: what can be known about a plan without running it. Numbers in, numbers out."""
