"""Keyed hashes, the permutation, lanes, and canonical JSON: the order's random numbers."""
