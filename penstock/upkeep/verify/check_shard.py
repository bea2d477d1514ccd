"""Check one shard against its version: size, index, and all bytes or one row."""

from collections.abc import Callable, Iterator
from typing import Any

from loader import Version
from loader.dataset.shards.index import IndexFile, IndexPlace
from loader.dataset.tables.foreign_objects import is_foreign
from loader.errors import PenstockError
from loader.storage import ObjectInfo
from loader.storage.external_shards import SEVERAL

from .registered import check_registered
from .shard import Problem, ShardProblems, check_bytes, check_last_row, shard_address


def check_shard(
    version: Version, shard: dict[str, Any], keys: list[str] | None, *, full: bool
) -> ShardProblems:
    """Return the problems of a shard and its index.

    keys: of its part, by the samples table; None if unknown. full: read every byte.
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
        index = IndexFile(version.store, IndexPlace.of(shard))
        info = _head(version, shard, index)
        if info.nbytes != shard["nbytes"]:
            yield Problem(
                address=address,
                what=f"the shard has {info.nbytes} bytes, the manifest states {shard['nbytes']}",
            )
        if index.n_rows != shard["n_rows"]:
            yield Problem(
                address=address,
                what=f"its index has {index.n_rows} rows, the manifest states {shard['n_rows']}",
            )
        if full:
            there = version.store.head(shard["index_path"]).nbytes
            if there != shard["index_nbytes"]:  # readers ask for its first bytes, and see no others
                yield Problem(
                    address=address,
                    what=f"its index has {there} bytes, the manifest states {shard['index_nbytes']}",
                )
            if registered:
                yield from check_registered(version, shard, address, index, keys, unverified)
            else:
                yield from check_bytes(version, shard, address, index, keys)
        elif not registered and index.n_rows and info.nbytes == shard["nbytes"]:
            yield from check_last_row(version, shard, index)
    except (PenstockError, OSError) as error:
        yield Problem(address=address, what=str(error))


def _head(version: Version, shard: dict[str, Any], index: IndexFile) -> ObjectInfo:
    """Return the facts of a shard from its store. Raises: Changed for a registered object that is another now."""
    placed, path = version.placed, shard["path"]
    if placed is None or not is_foreign(path):
        return version.store.head(path)
    live = version.parts.live_members(version.parts.position(shard["part"]))
    if live.all() or len(placed.objects(path)) == 1:
        return placed.head(path)
    needed, row = set[int](), 0
    while row < index.n_rows:
        rows = index.read_group(index.row_group_of(row))
        fields = rows.places[live[row : row + len(rows.keys)]].reshape(-1, 3)
        needed.update(fields[fields[:, 1] > 0, 0].tolist())
        row += len(rows.keys)
    placed.look_at(path, needed)
    return ObjectInfo(key=path, nbytes=shard["nbytes"], etag=SEVERAL)
