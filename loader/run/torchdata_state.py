"""Where a run is, told from what torchdata's StatefulDataLoader saves around the states of a plan."""

from collections.abc import Mapping
from typing import Any

from ..errors import PlanMismatch
from ..order.plan import Plan


def next_step(plan: Plan, state: object) -> int:
    """The global step that comes next after a plan's own state, or after one that a StatefulDataLoader saved.

    The package puts the dataset's state under "dataset_state", and with worker processes one per worker under
    "_snapshot". A worker's is the next step that it would make itself, so the earliest of them comes next; batches
    handed out since the snapshot was taken are counted beside it. The number of workers does not matter here.

    Raises: PlanMismatch (naming what differs, or that it is no such state); FormatTooNew; InvalidRuntime.
    """
    if not isinstance(state, Mapping) or not {"_snapshot", "dataset_state"} & state.keys():
        return plan.check_state(state)
    if "_snapshot" not in state:
        return plan.check_state(state["dataset_state"])
    try:
        workers: Mapping[str, Mapping[str, Any]] = state["_snapshot"]["_worker_snapshots"]
        saved = [worker["dataset_state"] for worker in workers.values()]
        since = int(state["_steps_since_snapshot"])
    except (KeyError, TypeError, AttributeError) as error:
        raise PlanMismatch(
            f"not a state that torchdata's StatefulDataLoader saved ({type(error).__name__}: {error}); it has "
            f"{sorted(map(str, state))}. Pass what its state_dict() returned, unchanged"
        ) from error
    if not saved:
        raise PlanMismatch("a StatefulDataLoader's state without any worker's; pass it as it was saved")
    return plan.checked_step(min(plan.check_state(one) for one in saved) + since)
