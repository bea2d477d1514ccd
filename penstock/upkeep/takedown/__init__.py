"""Takedowns: remove what the denied names touch, and prove it."""
