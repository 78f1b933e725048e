"""fmm/perfmodel/papers."""
