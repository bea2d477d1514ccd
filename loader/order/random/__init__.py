"""Keyed hashes, the permutation, lanes, and canonical JSON: the random numbers of the order."""
