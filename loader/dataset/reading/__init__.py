"""From samples to verified bytes: `places` finds byte ranges; `verified_*_reads` read them and compare checksums."""
