"""Create and check the folder of a node cache, which must be empty or a node cache already.

It belongs to one user, mode 700, unless shared explicitly.

- `penstock-cache.json`: marker, created first
- `pages/<2 hex>/<name>`: whole pages
- `writing/<random>`: pages and hints being written
- `claims/<name>`: empty file: a process is fetching this page
- `hints/<random>`: pages that one running loader needs next
"""

import os
import stat
from contextlib import suppress

from ..errors import InvalidRuntime

MARKER = "penstock-cache.json"
FORMAT = b'{"format": 1}\n'
ROOT_MARKER = "penstock.json"
LANDING_MARKER = "_origins.json"
"""File that a landing location may contain besides its objects."""
FOLDERS = ("pages", "writing", "claims", "hints")


def make_place(path: str, *, shared: bool = False) -> None:
    """Make the folder a node cache, for this user only unless `shared`.

    Raises: InvalidRuntime if the folder has other content, or another user can write pages to it; OSError.
    """
    _refuse_sources(path)
    mode = folder_mode(file_mode(shared))
    with suppress(FileExistsError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path, mode)
    if not shared:
        _refuse_others(path)
    there = os.listdir(path)
    if there and MARKER not in there:
        raise InvalidRuntime(
            f"the cache folder {path} holds other things ({min(there)} ...); a cache throws files away, so it needs an "
            "empty folder of its own"
        )
    if not shared and (mode_now := stat.S_IMODE(os.stat(path).st_mode)) & 0o077:
        os.chmod(path, mode_now & ~0o077)  # earlier releases left it readable by others
    if not there:
        write_new(os.path.join(path, MARKER), FORMAT, file_mode(shared))
    for folder in FOLDERS:
        with suppress(FileExistsError):
            os.mkdir(os.path.join(path, folder), mode)


def file_mode(shared: bool) -> int:
    """Return the mode of a cache's files, before the umask."""
    return 0o666 if shared else 0o600


def folder_mode(mode: int) -> int:
    """Return the folder mode for files of `mode`, before the umask."""
    return mode | (mode & 0o444) >> 2


def write_new(path: str, data: bytes, mode: int) -> None:
    """Write a small file, unless another process already did. Raises: OSError."""
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(data)


def _refuse_others(path: str) -> None:
    """Raise InvalidRuntime unless this user owns the folder and only this user can write to it; OSError."""
    link, status, user = os.lstat(path), os.stat(path), os.geteuid()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (user, 0):
        why = f"is a link that user {link.st_uid} made"
    elif status.st_uid != user:
        why = f"belongs to user {status.st_uid}"
    elif status.st_mode & 0o022:
        why = f"has the mode {stat.S_IMODE(status.st_mode):o}: others may write there"
    else:
        return
    raise InvalidRuntime(
        f"the cache folder {path} {why}, and this process runs as user {user}: anyone who writes there decides what a "
        "training reads. Name a folder that is not there yet (it is made with the mode 700), or empty this one, make "
        "it yours and chmod 700; where users who trust one another share it: loader.NodeCache(path=..., shared=True)"
    )


def _refuse_sources(path: str) -> None:
    folder = os.path.realpath(path)
    while True:
        for marker, what in ((ROOT_MARKER, "a penstock root"), (LANDING_MARKER, "a landing place")):
            if os.path.exists(os.path.join(folder, marker)):
                raise InvalidRuntime(
                    f"the cache folder {path} lies in {folder}, which is {what}; nothing but its own data may lie "
                    "there: use a folder elsewhere on a local disk"
                )
        above = os.path.dirname(folder)
        if above == folder:
            return
        folder = above
