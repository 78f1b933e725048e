"""Tables and figures of the papers: printed numbers beside those computed from the schemes and step tables of fmm."""
