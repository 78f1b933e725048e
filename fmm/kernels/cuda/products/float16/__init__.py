"""float32 products by three of float16: planes, splits, sums that write planes, launches."""
