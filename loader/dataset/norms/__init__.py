"""Norms: exact statistics of the numbers that windows deliver, and the transform they belong to."""
