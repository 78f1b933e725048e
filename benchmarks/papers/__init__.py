"""The papers' experiments on this device: published, computed and measured numbers, a row for each figure."""
