"""What a product by each leaf is on a chip: one module for the vendor's leaves, and one for each kind of our own."""
