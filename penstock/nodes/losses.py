"""Compare the metrics of a run with the metrics of its replays on other nodes."""

import loader
from loader.run.trail.compared_notes import compare_notes
from loader.run.trail.step_range_reads import notes_in_parts

from ..train.replay_run import replay_origin, step_nodes
from ..train.run_folder import RunFolder
from .suspects import LossDifference


def loss_differences(root: loader.Root, run: str) -> list[LossDifference]:
    """Return the first difference between a replay and its run; none if the run is not a replay.

    Costs as `notes_in_parts`, until a part differs. Raises: Corrupt.
    """
    origin = replay_origin(run)
    if origin is None:
        return []
    for first, second in notes_in_parts(root, origin, run):
        notes = compare_notes(first, second)
        if not notes.differing:
            continue
        difference = notes.differing[0]
        step = difference.step
        nodes = step_nodes(RunFolder(root.store, origin), step, step + 1)
        replay_nodes = step_nodes(RunFolder(root.store, run), step, step + 1)
        text = f"{difference.note} is {difference.values[0]}, and {difference.values[1]}"
        at_us = int(second.steps["at_us"].to_numpy().max())
        return [
            LossDifference(
                run=origin,
                step=step,
                at_us=at_us,
                nodes=nodes,
                replay_nodes=replay_nodes,
                text=text,
            )
        ]
    return []
