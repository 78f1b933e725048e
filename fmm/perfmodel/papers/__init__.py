"""Tables and figures of five sources: printed numbers beside numbers computed from schemes and step tables."""
