"""Choose what makes the items of datasets: the training's thread, or worker processes."""

from typing import Literal

from ...errors import InvalidRuntime


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
            "'processes' or 'auto'"
        )
    if workers == 0:
        if has_copy_thread:
            # Items draw from the generators that the whole process shares.
            raise InvalidRuntime(
                "workers = 0 with device= over a dataset: the thread that copies to the device would make items "
                "beside the training, and both draw from the same generators; use workers='auto' or at least 1"
            )
        return "caller", "workers = 0"
    if has_copy_thread:
        return "processes", "a dataset's items are made apart from the thread that copies to the device"
    if workers == "auto":
        return (
            "caller",
            "a dataset's items are made in the training's thread; workers=n makes them in processes",
        )
    return "processes", "one thread of each process makes a dataset's items"
