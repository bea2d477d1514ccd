"""Losses that came out otherwise when a replay repeated them: signs against the node that it left out."""

import loader
from loader.errors import RunNotFound

from ..train.replay_run import nodes_at, origin_of
from ..train.run_folder import RunFolder
from ..view.inspect.run_comparison import compared_notes
from .suspects import LossDifference


def loss_differences(root: loader.Root, run: str) -> list[LossDifference]:
    """Return the first difference between a replay and its run; none for another run. Raises: Corrupt."""
    origin = origin_of(run)
    if origin is None:
        return []
    try:
        first, second = loader.read_trail(root, origin), loader.read_trail(root, run)
    except RunNotFound:
        return []  # a trail is not written before the first steps end
    notes = compared_notes(first, second)
    if not notes.differing:
        return []
    difference = notes.differing[0]
    step, at_us = difference.step, second.steps["at_us"].to_numpy().max()
    return [
        LossDifference(
            run=origin,
            step=step,
            at_us=int(at_us),
            nodes=nodes_at(RunFolder(root.store, origin), step, step + 1),
            replay_nodes=nodes_at(RunFolder(root.store, run), step, step + 1),
            text=f"{difference.note} is {difference.values[0]}, and {difference.values[1]}",
        )
    ]
