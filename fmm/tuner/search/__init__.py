"""Search for the fastest plan of a shape: the search space, the timing against the vendor, and the certification."""
