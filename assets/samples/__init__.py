"""The samples asset: assembly of samples, near-duplicates."""
