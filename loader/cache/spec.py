"""Settings of a cache; picklable, so that worker processes open the same one."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InvalidRuntime
from ..keywords import whole_number

PAGE_BYTES = 2**20
"""Default page size: 1 MiB amortises a 20 ms round trip at 50 MB/s; larger pages fetch unneeded bytes."""
PAGE_BYTES_MAX = 64 * 2**20
"""Largest page size in bytes."""
LIMIT_BYTES_MAX = 2**63
"""Largest limit in bytes."""
PAGES_MIN = 8
"""Least number of pages in a cache: a process may write an eighth of the limit unchecked, at least one page."""
MEMORY_BYTES = 2**30
"""Default limit, in bytes, of a loader's page memory for remote sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCache:
    """A local folder with pages of remote objects, shared by every process on this machine. Raises: InvalidRuntime."""

    path: str | os.PathLike[str]
    """Folder used for nothing else; created if missing."""
    limit_bytes: int | None = None
    """Most bytes of the cache's files; None is half of the disk's free space, counting the cache as free."""
    page_bytes: int = PAGE_BYTES
    """Page size in bytes, 4,096 to 64 MiB."""
    shared: bool = False
    """True lets other users of the machine read and replace pages; False allows only this user."""
    peers: str | Sequence[str] | None = None
    """Servers of the cluster's pages: a list of HOST:PORT, "slurm", or "dns:NAME:PORT". None keeps pages for this node
    only."""

    def __post_init__(self) -> None:
        path = os.fspath(self.path)
        if not isinstance(path, str) or not path or "://" in path or path.startswith("~"):
            raise InvalidRuntime(
                f"cache path {path!r}: the path of a folder on a local disk is needed, written in full",
                what="cache path",
                given=path,
                accepted="the full path of a local folder",
            )
        object.__setattr__(self, "path", os.path.abspath(path))
        _set_whole_number(self, "page_bytes", 4096, PAGE_BYTES_MAX)
        if not isinstance(self.shared, bool):
            raise InvalidRuntime(
                f"cache shared = {self.shared!r}; True or False is needed",
                what="cache shared",
                given=self.shared,
                accepted=[True, False],
            )
        if self.limit_bytes is not None:
            _set_whole_number(self, "limit_bytes", PAGES_MIN * self.page_bytes, LIMIT_BYTES_MAX)
        if self.peers is not None:
            from .addresses import parse_peers  # only with peers

            object.__setattr__(self, "peers", parse_peers(self.peers))

    def shared_by(self, processes: int) -> "NodeCache":
        """Return the settings for each of `processes` processes of one loader. They share the folder and its limit."""
        if processes == 1:
            return self
        return WorkersNodeCache(
            path=self.path,
            limit_bytes=self.limit_bytes,
            page_bytes=self.page_bytes,
            shared=self.shared,
            peers=self.peers,
        )


class WorkersNodeCache(NodeCache):
    """The same for the worker processes of a loader, which keep no pages in memory beside the folder.

    Each makes some of the batches, and uses parts of pages, which its own memory would read whole.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PageMemory:
    """Memory in one loader process for pages of remote objects. Raises: InvalidRuntime."""

    limit_bytes: int = MEMORY_BYTES
    """Most bytes kept; 0 keeps and reads ahead nothing."""
    page_bytes: int = PAGE_BYTES
    """Page size in bytes, 4,096 to 64 MiB."""

    def __post_init__(self) -> None:
        _set_whole_number(self, "page_bytes", 4096, PAGE_BYTES_MAX)
        _set_whole_number(self, "limit_bytes", 0, LIMIT_BYTES_MAX)

    def shared_by(self, processes: int) -> "PageMemory":
        """Return the settings for each of `processes` processes, with its share of the limit."""
        return PageMemory(limit_bytes=self.limit_bytes // processes, page_bytes=self.page_bytes)


CacheSpec = NodeCache | PageMemory


def cache_spec(cache: CacheSpec | str | os.PathLike[str] | int | None) -> CacheSpec:
    """Return the settings for `Loader(cache=...)`: a folder, or bytes of memory. Raises: InvalidRuntime."""
    if cache is None:
        return PageMemory()
    if isinstance(cache, NodeCache | PageMemory):
        return cache
    if isinstance(cache, int) and not isinstance(cache, bool):
        return PageMemory(limit_bytes=cache)
    if isinstance(cache, str | os.PathLike):
        return NodeCache(path=cache)
    raise InvalidRuntime(
        f"cache = {cache!r}; accepted: None, a number of bytes of memory, the path of a folder, or "
        "loader.NodeCache(path=..., limit_bytes=...)",
        what="cache",
        given=cache,
        accepted="None, a number of bytes, a folder, or loader.NodeCache",
    )


def _set_whole_number(spec: CacheSpec, name: str, low: int, high: int) -> None:
    number = whole_number(name, getattr(spec, name), low, high)
    object.__setattr__(spec, name, number)  # the settings are frozen
