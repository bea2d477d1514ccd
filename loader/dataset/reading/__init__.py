"""From samples to verified bytes.

`places` finds byte ranges. `verified_bucket_reads` and `verified_gathers` read them and compare checksums.
"""
