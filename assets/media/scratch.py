"""Local temporary space: full or forbidden, it is the operator's trouble and no fault of the media."""

import errno
from pathlib import Path

from loader.errors import StoreError
from loader.storage.disk.scratch import no_room

_OURS = (errno.EFBIG, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE)


def check_scratch(error: Exception, scratch: Path | str) -> None:
    """Raise an error of scratch space as StoreError, and pass over errors caused by the media.

    Raises: StoreError when `error` says that `scratch` could not be written.
    """
    if getattr(error, "errno", None) in _OURS:
        raise scratch_error(error, scratch) from error


def scratch_error(error: Exception, scratch: Path | str) -> StoreError:
    """Return the error for temporary space that is full or cannot be written."""
    meanwhile, room_for = (
        "while media were cut; nothing of this object was kept",
        "the raw object and its samples",
    )
    return no_room(scratch, error, meanwhile, room_for=room_for, again="run the batch again")
