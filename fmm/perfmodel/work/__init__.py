"""Work: what the prediction needs of a plan on a problem, counted exactly or estimated in microseconds."""
