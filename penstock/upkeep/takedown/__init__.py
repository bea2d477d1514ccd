"""Takedowns: remove denied samples from a root, and prove it."""
