"""Output files: an attempt's own directory, stores, staging and publication (G11)."""
