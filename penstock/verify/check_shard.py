"""One shard against its version: its size and its index, and its bytes or a row of them."""

from collections.abc import Callable, Iterator
from typing import Any

from loader import Version
from loader.dataset.shards.index import IndexFile, IndexPlace
from loader.dataset.tables.foreign_objects import is_foreign
from loader.errors import PenstockError
from loader.storage import ObjectInfo

from .registered import check_registered
from .shard import Problem, ShardProblems, check_bytes, check_last_row, shard_address


def check_shard(
    version: Version, shard: dict[str, Any], keys: list[str] | None, *, full: bool
) -> ShardProblems:
    """Return what is wrong with a shard and its index.

    keys: of its part, by the samples table; None where that cannot be told.
    full: whether every byte is read.
    """
    unverified: list[int] = []
    problems = list(_problems(version, shard, keys, unverified.append, full=full))
    return ShardProblems(problems=problems, unverified_nbytes=sum(unverified))


def _problems(
    version: Version,
    shard: dict[str, Any],
    keys: list[str] | None,
    unverified: Callable[[int], None],
    *,
    full: bool,
) -> Iterator[Problem]:
    address = shard_address(version, shard)
    try:
        registered = is_foreign(shard["path"])
        if registered and not version.parts.live_members(version.parts.position(shard["part"])).any():
            return  # its object may be another now, or gone: registering again has left its samples out
        found = _head(version, shard["path"])
        if found.nbytes != shard["nbytes"]:
            yield Problem(
                address=address,
                what=f"the shard has {found.nbytes} bytes, the manifest says {shard['nbytes']}",
            )
        index = IndexFile(version.store, IndexPlace.of(shard))
        if index.n_rows != shard["n_rows"]:
            yield Problem(
                address=address,
                what=f"its index has {index.n_rows} rows, the manifest says {shard['n_rows']}",
            )
        if full:
            there = version.store.head(shard["index_path"]).nbytes
            if there != shard["index_nbytes"]:  # readers ask for its first bytes, and see no others
                yield Problem(
                    address=address,
                    what=f"its index has {there} bytes, the manifest says {shard['index_nbytes']}",
                )
            if registered:
                yield from check_registered(version, shard, address, index, keys, unverified)
            else:
                yield from check_bytes(version, shard, address, index, keys)
        elif not registered and index.n_rows and found.nbytes == shard["nbytes"]:
            yield from check_last_row(version, shard, index)
    except (PenstockError, OSError) as error:
        yield Problem(address=address, what=str(error))


def _head(version: Version, path: str) -> ObjectInfo:
    """Return what the store of a shard says of it. Raises: Changed for a registered object that is another now."""
    placed = version.placed
    return version.store.head(path) if placed is None else placed.head(path)
