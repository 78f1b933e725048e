"""Write the report of `fmm-tune report`: an HTML page with tables and figures of a config and its trials."""
