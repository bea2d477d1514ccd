"""The samples asset: assembled samples, near-duplicates."""
