"""The errors where a process may not have as many open files as worker processes take."""

import errno
import resource

from ...errors import InvalidRuntime

NO_FILES = 24
"""The exit status of a worker that could not open what a batch needs."""

_FEW = 64


def is_want_of_files(error: OSError) -> bool:
    """Return whether it is the limit of this process, or that of the machine."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def too_few_files(doing: str, workers: int) -> InvalidRuntime:
    """Return the error of too few files. workers: processes that there are to be."""
    return InvalidRuntime(
        f"{doing} needs more open files than this process may have: {_limit()} (`ulimit -n`); {workers} worker "
        f"processes take {_FEW + 4 * workers}, and two for each batch that is kept: raise the limit, or use "
        "executor='threads'"
    )


def if_few() -> str:
    """Return a hint for a worker that ended without a word; "" where the limit is no reason for it."""
    return f" It may have {_limit()} open files (`ulimit -n`): raise that." if 0 <= _limit() < _FEW else ""


def _limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
