"""Plans: their text form, their levels and leaves, and the steps that they become."""
