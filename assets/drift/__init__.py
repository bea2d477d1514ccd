"""Whether a batch is another kind of data than the version that it would be added to.

A difference is a finding when it matters (more than a limit), is no chance (its significance is shared out among all
comparisons of the batch, counted in raw objects), and is unusual (the batches of the baseline do not differ as much
among themselves).
"""

from .findings import Finding, Thresholds

__all__ = ["Finding", "Thresholds"]
