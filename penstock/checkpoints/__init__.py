"""Save and load training checkpoints in any store.

    from penstock.checkpoints import Checkpoints, TrainingState

    checkpoints = Checkpoints("s3://bucket/root", "run-7", keep_last=3, keep_every=10_000)
    state = {"train": TrainingState(model, optimizer)}
    checkpoints.load(state, batches)  # the newest, on any number of ranks; None if there is none yet
    for batch in batches:
        ...
        checkpoints.save(batches.step, state, batches, wait=False)
    checkpoints.close()

A checkpoint is complete once its marker is written (docs/format.md, "Checkpoints").
"""

from .marker import Checkpoint
from .run_checkpoints import Checkpoints
from .training_state import TrainingState

__all__ = ["Checkpoint", "Checkpoints", "TrainingState"]
