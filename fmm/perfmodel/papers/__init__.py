"""Tables and figures of five sources: numbers printed there beside numbers computed from schemes and step tables."""
