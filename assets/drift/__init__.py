"""Drift: a batch that is another kind of data than the version that it would be added to.

A difference is a finding when three things hold:

- It matters: it is more than a limit.
- It is no chance: its significance is shared out among all comparisons of the batch, counted in raw objects.
- It is unusual: the batches of the baseline do not differ as much among themselves.
"""

from .findings import Finding, Thresholds

__all__ = ["Finding", "Thresholds"]
