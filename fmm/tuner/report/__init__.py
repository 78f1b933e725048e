"""Write the report of `fmm-tune report`: an HTML page with tables and figures from a config and its trials."""
