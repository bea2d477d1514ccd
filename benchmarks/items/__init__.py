"""`python -m benchmarks.items`: penstock beside other loaders over one map-style dataset."""
