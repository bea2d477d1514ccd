"""Trainings that stop in time, and go on where they stopped.

from penstock.train import Run

with Run.joined() as run: ...        in any script that a launcher begins (docs/training.md)
"""

from .run import Run

__all__ = ["Run"]
