"""Feature assets, and the recomputation of published features."""
