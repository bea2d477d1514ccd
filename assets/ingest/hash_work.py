"""The work HASH: a node reads a raw object once, for its SHA-256 and its type by content."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from loader.errors import Changed, Corrupt, StoreError
from loader.storage import Store
from penstock.compute.pool import is_fault
from penstock.compute.work import Node, Work

from ..media.objects import check_folder
from ..media.sniff import HEAD_BYTES, sniff

_CHUNK_BYTES = 8 * 2**20
_REASON_CHARS = 500
# Rough rates, for the estimates by which work is divided, and for time limits.
_BYTES_PER_S = 100e6
_SLOWEST_BYTES_PER_S = 1e6
_START_S = 0.05
_LEAST_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HashTask:
    """One object version to read."""

    landing: str
    """URL of the object's store."""
    key: str
    """Key of the object."""
    uri: str
    """Object's URI, for messages."""
    etag: str
    """Change token of the discovered version."""
    nbytes: int
    """Size of the discovered version in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashed:
    """An object's content, or why it was unreadable."""

    sha256: str = ""
    """SHA-256 in hex; "" if unreadable."""
    mime: str = ""
    """Type by content; "" if unreadable."""
    error_code: str = ""
    """Error class or ""."""
    error_reason: str = ""
    """Text of the error."""


def read_content(landing: Store, task: HashTask) -> Hashed:
    """Read exactly the task's object version; return its content, or why the object is unreadable.

    Raises: StoreError if store, disk or credentials fail.
    """
    digest = hashlib.sha256()
    head = b""  # of the first chunk
    try:
        for chunk in _chunks(landing, task):
            head = head or chunk[:HEAD_BYTES]
            digest.update(chunk)
    except (StoreError, Corrupt) as error:
        if is_fault(error):
            raise
        check_folder(landing)  # raises if the whole source is gone: that is not a verdict on an object
        reason = str(error)
        return Hashed(error_code=type(error).__name__, error_reason=reason[:_REASON_CHARS])
    return Hashed(sha256=digest.hexdigest(), mime=sniff(head))


def _chunks(landing: Store, task: HashTask) -> Iterator[bytes]:
    """Yield the object's bytes. Raises: Changed if it is another version; StoreError."""
    if not task.nbytes:  # no range is read below, whose etag would show a replaced object
        info = landing.head(task.key)
        if info.etag != task.etag:
            raise Changed(
                f"{task.uri} was replaced after its discovery (etag {task.etag}, now {info.etag}); it lands again "
                "in a later batch"
            )
    for offset in range(0, task.nbytes, _CHUNK_BYTES):
        nbytes = min(_CHUNK_BYTES, task.nbytes - offset)
        chunk = landing.get_range(task.key, offset, nbytes, task.etag)
        yield chunk.data


def hash_object(task: HashTask, node: Node) -> Hashed:
    """Read an object on a node. Raises: as `read_content`."""
    return read_content(node.open(task.landing), task)


def _cost_s(task: HashTask) -> float:
    return _START_S + task.nbytes / _BYTES_PER_S


def _limit_s(task: HashTask) -> float:
    return _LEAST_LIMIT_S + task.nbytes / _SLOWEST_BYTES_PER_S


HASH = Work(
    name="hash",
    version="1",
    function=hash_object,
    unit=HashTask,
    result=Hashed,
    timeout_s=_limit_s,
    cost_s=_cost_s,
)
