"""From samples to verified bytes: lookups of byte ranges, reads, checksums."""
