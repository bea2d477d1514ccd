"""Local temporary space: full or forbidden, it is the operator's trouble and no fault of the media."""

import errno
from pathlib import Path

from loader.errors import StoreError

_OURS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE)


def check_scratch(error: OSError | Exception, scratch: Path | str) -> None:
    """Pass over what the media caused. Raises: StoreError when `error` says that `scratch` could not be written."""
    number = getattr(error, "errno", None)
    if number in _OURS:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(
            f"temporary space {scratch}: {reason}, while media were cut; nothing of this object was kept. Set "
            "TMPDIR to a writable disk with room for the raw object and its samples, and run the batch again"
        ) from error
