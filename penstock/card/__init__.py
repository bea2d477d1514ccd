"""The dataset card of a version: counts, distributions, provenance, checks and examples."""
