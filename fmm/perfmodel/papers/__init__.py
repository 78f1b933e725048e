"""The papers' tables and figures, computed from the schemes and step tables that fmm runs, beside what is printed."""
