"""The folder of a node cache: made in an empty place, refused where other things lie.

penstock-cache.json       marks it; the first thing there is
pages/<2 hex>/<name>      whole pages
writing/<random>          pages and hints that are being written
claims/<name>             empty: somebody fetches this page
hints/<random>            what one running loader needs next
"""

import os
from contextlib import suppress

from ..errors import InvalidRuntime

MARKER = "penstock-cache.json"
FORMAT = b'{"format": 1}\n'
ROOT_MARKER = "penstock.json"
LANDING_MARKER = "_origins.json"
"""What landing places may hold beside their objects."""
FOLDERS = ("pages", "writing", "claims", "hints")


def make_place(path: str) -> None:
    """Make the folder a node cache, if it is not one. Raises: InvalidRuntime where it may not be; OSError."""
    _refuse_sources(path)
    try:
        there = os.listdir(path)
    except FileNotFoundError:
        os.makedirs(path, exist_ok=True)
        there = []
    if there and MARKER not in there:
        raise InvalidRuntime(
            f"the cache folder {path} holds other things ({min(there)} ...); a cache throws files away, so it needs an "
            "empty folder of its own"
        )
    if not there:
        with suppress(FileExistsError), open(os.path.join(path, MARKER), "xb") as marker:
            marker.write(FORMAT)
    for folder in FOLDERS:
        os.makedirs(os.path.join(path, folder), exist_ok=True)


def _refuse_sources(path: str) -> None:
    """Raises: InvalidRuntime when the path lies in a root or in a landing place that says it is one."""
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
