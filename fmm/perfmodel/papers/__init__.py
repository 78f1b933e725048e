"""The papers' own counts, bounds, tables and figures, from the descriptions of the algorithms that fmm runs."""
