"""Which plan answers a product, what it may cost, what is left to the vendor at once, and by what that is found."""
