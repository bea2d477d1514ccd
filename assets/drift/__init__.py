"""Drift: differences between a batch and the version that it would join.

- A finding matters: it exceeds a limit.
- It is significant: alpha is shared among all comparisons of the batch, counted in raw objects.
- It is unusual: batches of the baseline differ less among themselves.
"""

from .findings import DriftFinding, Thresholds

__all__ = ["DriftFinding", "Thresholds"]
