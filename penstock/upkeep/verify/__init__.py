"""Verify a root, with one module per kind of object."""
