"""What a tuning measures, stage by stage, and on which shapes."""
