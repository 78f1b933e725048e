"""What the papers say of speed: run times by size, levels and thresholds, published beside computed beside measured."""
