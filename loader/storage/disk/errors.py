"""Map errors of the operating system to `loader.errors`."""

import errno
import os

from ...errors import Forbidden, InvalidStore, ObjectNotFound, StoreError, Transient

_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_AGAIN = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR}


def disk_error(verb: str, path: str, error: OSError) -> StoreError:
    """Return the leaf of `StoreError` for `error`, met while `verb`ing `path`."""
    why = f"cannot {verb} {path}: {error.strerror or error}"
    number = error.errno
    if isinstance(error, NotADirectoryError) and verb == "write":
        return InvalidStore(
            f"{why}; part of that path is a file, and a disk cannot hold 'a' and 'a/b': choose another key"
        )
    leads_nowhere = number == errno.ELOOP and verb == "read"  # a link to itself, as one to what is not there
    if isinstance(error, FileNotFoundError | NotADirectoryError) or leads_nowhere:
        if verb == "write" and error.filename not in (None, path):
            return ObjectNotFound(f"cannot write {path}: there is no file {error.filename}")
        return ObjectNotFound(f"{path}: there is no such object")
    if isinstance(error, IsADirectoryError) or number == errno.ENOTEMPTY:
        return InvalidStore(f"{why}; other objects lie below that key: choose another key")
    if isinstance(error, PermissionError) or number == errno.EROFS:
        return Forbidden(
            f"{why}; this process runs as user id {os.geteuid()}: check owner and mode of the directory, "
            "and whether the file system is mounted read-only"
        )
    if number in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            f"{why}; nothing was stored: free space or raise the quota there (`df {os.path.dirname(path)}`), "
            "then run the same command again"
        )
    if number in (errno.EMFILE, errno.ENFILE):
        return StoreError(f"{why}; raise the limit of open files (`ulimit -n`) or read with fewer threads")
    if number == errno.ENAMETOOLONG:
        return InvalidStore(f"{why}; a segment of a key on a disk is at most 255 bytes")
    if number in _AGAIN:
        return Transient(f"{why}; the disk or its server did not answer: check it, then try again")
    return StoreError(f"{why} (errno {number})")


def upload_size(path: str, target: str) -> int:
    """Return the size of a local file to upload. Raises: ObjectNotFound; InvalidStore; Forbidden."""
    try:
        with open(path, "rb") as source:
            return os.fstat(source.fileno()).st_size
    except FileNotFoundError:
        raise ObjectNotFound(f"cannot write {target}: there is no file {path}") from None
    except IsADirectoryError:
        raise InvalidStore(f"cannot write {target}: {path} is a directory; upload its files") from None
    except OSError as error:
        raise disk_error("read", path, error) from error


def no_links(path: str, error: OSError) -> OSError | StoreError:
    """Return the error of a failed link: `error`, or that this file system cannot create atomically."""
    if error.errno not in _NO_LINKS:
        return error
    return InvalidStore(
        f"cannot create {path}: its file system has no hard links ({error.strerror}), so a create-only write "
        "cannot be safe there; keep the root on a POSIX file system or in a bucket"
    )
