"""Li, Ranka and Sahni (2011): exact counts, thresholds, and what the paper prints beside what is computed."""
