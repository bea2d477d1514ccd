"""Drift: differences between a batch and the version that it would join.

A finding stops a batch if it is

- relevant: it exceeds a limit;
- significant: alpha is shared among all comparisons of the batch, and only raw objects count;
- unusual: the batches of the baseline differ less from each other.
"""

from .findings import DriftFinding, Thresholds

__all__ = ["DriftFinding", "Thresholds"]
