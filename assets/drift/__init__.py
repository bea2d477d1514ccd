"""Drift: differences between a batch and the version that it would join.

A difference is a finding if it matters (exceeds a limit), is significant (alpha is shared among all comparisons of the
batch, counted in raw objects), and is unusual (batches of the baseline differ less among themselves).
"""

from .findings import DriftFinding, Thresholds

__all__ = ["DriftFinding", "Thresholds"]
