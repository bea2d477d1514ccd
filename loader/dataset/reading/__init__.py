"""From samples to verified bytes: places, lookups, reads, checksums."""
