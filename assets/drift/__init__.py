"""Drift: differences between a batch and the version that it would join.

A finding that stops a batch is relevant, significant and unusual. Alpha is shared among all comparisons, and raw
objects count. Unusual means that the baseline's batches differ less from each other.
"""

from .findings import DriftFinding, Thresholds

__all__ = ["DriftFinding", "Thresholds"]
