"""One product by several devices: who holds which blocks, who computes which, and what is sent to whom, and when."""
