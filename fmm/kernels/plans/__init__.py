"""Plans: their text form, their levels and leaves, and their lowering to steps."""
