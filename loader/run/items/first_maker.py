"""Choose what makes the items of datasets: the training's thread, or worker processes; never a thread beside it."""

from typing import Literal

from ...errors import InvalidRuntime
from ..maker_choice import MIN_WAIT_SHARE, Maker, Room, Stages


def first_maker(
    executor: object,
    workers: int | Literal["auto"],
    has_copy_thread: bool,
) -> tuple[str, str]:
    """Return (the maker's name, why). has_copy_thread: as for `Execution`.

    Raises: InvalidRuntime for threads, and for a thread beside the training's that would make items itself.
    """
    if executor == "threads":
        raise InvalidRuntime(
            "executor = 'threads' over a dataset: a dataset is called by one thread at a time, as torch does; use "
            "'processes' or 'auto'",
            what="executor",
            given="threads",
            accepted=["processes", "auto"],
        )
    if workers == 0:
        if has_copy_thread:
            # Items draw from the generators that the whole process shares.
            raise InvalidRuntime(
                "workers = 0 with device= over a dataset: the thread that copies to the device would make items "
                "beside the training, and both draw from the same generators; use workers='auto' or at least 1",
                what="workers",
                given=0,
                accepted="'auto', or at least 1",
            )
        return "caller", "workers = 0"
    if has_copy_thread:
        return "processes", "a dataset's items are made apart from the thread that copies to the device"
    if workers == "auto":
        return "caller", "a dataset's items begin there; `auto` measures if processes are faster"
    return "processes", "one thread of each process makes a dataset's items"


def processes_instead(
    room: Room,
    stages: Stages,
    now: Maker,
) -> tuple[Maker, str] | None:
    """Return (worker processes, why) if the training loses time by making items itself; else None.

    On one core they would take turns with the training, and send each batch besides.
    """
    if now.name != "caller" or not room.processes or room.cores < 2:
        return None
    if stages.wait_share < MIN_WAIT_SHARE:
        return None
    why = f"making the items took {stages.wait_share:.0%} of the time of the training's thread"
    return Maker("processes", room.processes), why
