"""Drift: differences between a batch and the version that it would join.

A finding stops a batch if it is all of these:

- relevant: it exceeds a limit of the thresholds.
- significant: alpha is shared among all comparisons of the batch, and raw objects count, not samples.
- unusual: the batches of the baseline differ less from each other.
"""

from .findings import DriftFinding, Thresholds

__all__ = ["DriftFinding", "Thresholds"]
