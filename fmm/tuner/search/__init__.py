"""Search for a shape's fastest plan: the search space, the timing against the vendor, and the certification."""
