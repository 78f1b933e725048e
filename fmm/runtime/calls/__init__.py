"""Calls: what is asked of one product, its operands, and the call that answers it, kept for the next one like it."""
