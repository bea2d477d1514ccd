"""From samples to verified bytes: `places` looks up byte ranges; `verified_*_reads` reads them and compares checksums."""
