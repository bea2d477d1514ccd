"""Local scratch space: if it is full or read-only, the operator must act; the media are not at fault."""

import errno
from pathlib import Path

from loader.errors import StoreError
from loader.storage.disk.scratch import no_room

_OURS = (errno.EFBIG, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE)


def check_scratch(error: Exception, scratch: Path | str) -> None:
    """Check that scratch space did not cause this error. Raises: StoreError if it did."""
    if getattr(error, "errno", None) in _OURS:
        raise scratch_error(error, scratch) from error


def scratch_error(error: Exception, scratch: Path | str) -> StoreError:
    """Return the error for scratch space that is full or read-only."""
    meanwhile, room_for = (
        "while media were cut; nothing of this object was kept",
        "the raw object and its samples",
    )
    return no_room(scratch, error, meanwhile, room_for=room_for, again="run the batch again")
