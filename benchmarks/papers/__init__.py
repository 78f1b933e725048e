"""The papers' experiments on the device at hand: published beside computed beside measured, a row for each figure."""
