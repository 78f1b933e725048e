"""Min-plus products and shortest paths: what numbers mean, which way is taken, and the device's part."""
