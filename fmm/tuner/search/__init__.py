"""Search the fastest plan of a shape: the space of plans, the race, and the certification."""
