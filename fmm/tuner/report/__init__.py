"""The report: what a config and its trials say, as one page with a table, pictures and what they mean."""
