"""Drift: differences between a batch and the version that it would join."""

from .findings import DriftFinding, Thresholds

__all__ = ["DriftFinding", "Thresholds"]
