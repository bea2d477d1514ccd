"""Files deleted below a folder, and nothing that lies behind a symbolic link in it."""

import errno
import os
import stat

from ...errors import InvalidStore
from .errors import disk_error

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def unlink_in_place(base: str, path: str) -> None:
    """Delete the file `path` below `base`, a folder or a link to one; none is no error.

    Each folder on the way is opened in the one before it, so no link that somebody lays there meanwhile is followed.
    Raises: InvalidStore where the path is a link, or leads through one; errors of the operating system, as
    StoreError.
    """
    *folders, name = path.split("/")
    try:
        descriptor = os.open(base, _FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise disk_error("delete", base + path, error) from error
    try:
        for depth, folder in enumerate(folders, 1):
            _check_no_link(descriptor, folder, base + "/".join(folders[:depth]), base + path)
            inner = os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        _check_no_link(descriptor, name, base + path, base + path)
        os.unlink(name, dir_fd=descriptor)
    except InvalidStore:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link since it was looked at
            raise _behind(base + path, base + path) from error
        raise disk_error("delete", base + path, error) from error
    finally:
        os.close(descriptor)


def _check_no_link(descriptor: int, name: str, link: str, path: str) -> None:
    if stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
        raise _behind(link, path)


def _behind(link: str, path: str) -> InvalidStore:
    return InvalidStore(
        f"{path} was not deleted: {link} is a symbolic link, and what lies behind one may be somebody else's; delete "
        "it there by hand, or mount that folder here in place of the link"
    )
