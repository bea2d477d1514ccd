"""From parts to one run: the shards, samples and stats tables that a change adds to a dataset."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from ...errors import Conflict, EmptyVersion, FieldMismatch, InvalidSample
from ...storage import Store
from ...storage.external_shards import FOREIGN
from ..shards.key_hashes import put_hashes
from ..shards.part import SHARDS_ROW_GROUP_ROWS, SHARDS_SCHEMA, Part, ShardFile
from ..tables.manifest import Change, GroupExtent
from ..tables.parquet import get_tables, put_table
from .exclude import NOTHING_SUPERSEDED, Superseded, put_exclusions
from .run_samples import RunKeys, RunSamples


def check_parts(parts: Sequence[Part]) -> str:
    """Return the transaction that all parts belong to.

    Raises: EmptyVersion; Conflict for two parts with one id; InvalidSample for parts of several transactions, or whose
    files were written with another.
    """
    if not parts:
        raise EmptyVersion("there is nothing to publish: no parts were given")
    txns = sorted({part.txn for part in parts})
    if len(txns) > 1:
        raise InvalidSample(
            f"these parts belong to {len(txns)} transactions ({', '.join(txns[:3])}); publish each with its own, or "
            "write them all with the txn of one root.begin()"
        )
    seen: set[str] = set()
    for part in parts:
        if not _is_written_by(part):  # what waits for a gate waits under whatever name
            raise InvalidSample(f"part {part.id} was not written with transaction {part.txn}")
        if part.id in seen:
            raise Conflict(f"part {part.id} was given twice; publish one attempt of each part")
        seen.add(part.id)
    if not sum(part.n_rows for part in parts):
        raise EmptyVersion("there is nothing to publish: the parts have no samples")
    return txns[0]


def _is_written_by(part: Part) -> bool:
    """Return whether all files of a part lie where its transaction writes, or were registered, and are of this part."""
    paths = [shard.path for shard in part.shards if not shard.path.startswith(FOREIGN)]
    paths += [shard.index_path for shard in part.shards]
    paths += [part.samples.path] if part.samples else []
    return all(path.startswith(f"data/{part.txn}/") for path in paths) and all(
        shard.part == part.id for shard in part.shards
    )


def write_run(
    store: Store,
    prefix: str,
    parts: Sequence[Part],
    earlier: Mapping[str, str],
    exclude: Mapping[str, str],
    superseded: Superseded = NOTHING_SUPERSEDED,
    samples: Sequence[pa.Table] | None = None,
) -> tuple[Change, RunKeys]:
    """Upload the run's tables under `prefix`, and return the change and the live keys that it adds.

    Costs a request per new part and six more at most, whatever the dataset holds.

    earlier: column -> type that the dataset already has.
    exclude: key -> reason.
    superseded: samples of earlier parts that are left out from now on.
    samples: of each part, in their order, as its samples table would have them; each may be made when it is asked for.
        None reads these tables.

    Raises: DuplicateKey; FieldMismatch; InvalidKey for a key to exclude that no part has; Corrupt.
    """
    tables = part_tables(store, parts) if samples is None else samples
    added = sum(part.n_rows for part in parts)
    run = RunSamples(tables, added, earlier)
    gone = {**run.rows_of(exclude), **superseded.rows}
    n_rows = {**{part.id: part.n_rows for part in parts}, **superseded.n_rows}
    files, stats = run.put(store, prefix)
    shards = [shard for part in parts for shard in part.shards]
    change = Change(
        shards=put_table(
            store, f"{prefix}/shards.parquet", shards_table(shards), "shards", SHARDS_ROW_GROUP_ROWS
        ),
        samples=tuple(files),
        stats=stats,
        key_hashes=put_hashes(store, prefix, run.keys.hashes),
        groups=extents(parts),
        n_parts=len(parts),
        n_rows=added,
        exclusions=put_exclusions(store, prefix, gone, n_rows) if gone else None,
        n_excluded=sum(map(len, gone.values())),
    )
    return change, run.keys.without(exclude) if exclude else run.keys


def write_group_run(store: Store, prefix: str, parts: Sequence[Part]) -> Change:
    """Upload the shards table of groups added to parts that exist."""
    shards = [shard for part in parts for shard in part.shards]
    return Change(
        shards=put_table(
            store, f"{prefix}/shards.parquet", shards_table(shards), "shards", SHARDS_ROW_GROUP_ROWS
        ),
        groups=extents(parts),
    )


def part_tables(store: Store, parts: Sequence[Part]) -> list[pa.Table]:
    """Return the samples table of each part. Raises: InvalidSample for a part without; FieldMismatch; Corrupt."""
    files = []
    for part in parts:
        if part.samples is None:
            raise InvalidSample(
                f"part {part.id} has no samples table; root.publish takes parts made by write_part"
            )
        files.append(part.samples)
    tables = []
    for part, table in zip(parts, get_tables(store, files), strict=True):
        if table.num_rows != part.n_rows or any(shard.n_rows != part.n_rows for shard in part.shards):
            raise FieldMismatch(
                f"part {part.id} says {part.n_rows} rows; its samples table has {table.num_rows}"
            )
        tables.append(table)
    return tables


def extents(parts: Sequence[Part]) -> dict[str, GroupExtent]:
    """Return the additions of these parts to each group. Raises: FieldMismatch when parts of a group differ."""
    out: dict[str, GroupExtent] = {}
    seen: set[tuple[str, str]] = set()
    for part in parts:
        for shard in part.shards:
            new = (shard.group, shard.path) not in seen  # parts of one registered object share its bytes
            seen.add((shard.group, shard.path))
            old = out.get(shard.group)
            if old is not None and set(old.field_nbytes) != set(shard.field_nbytes):
                raise FieldMismatch(
                    f"group {shard.group!r} has fields {sorted(old.field_nbytes)} in the first part and "
                    f"{sorted(shard.field_nbytes)} in part {part.id}; all parts of a group have the same fields"
                )
            have = old.field_nbytes if old else {}
            out[shard.group] = GroupExtent(
                field_nbytes={f: n + have.get(f, 0) for f, n in shard.field_nbytes.items()},
                n_parts=(old.n_parts if old else 0) + 1,
                n_rows=(old.n_rows if old else 0) + shard.n_rows,
                nbytes=(old.nbytes if old else 0) + new * shard.nbytes,
            )
    return out


def shards_table(shards: list[ShardFile]) -> pa.Table:
    """Return the `shards` table of these shards, in the order given."""
    columns = [
        pa.array([getattr(s, name) for s in shards], SHARDS_SCHEMA.field(name).type)
        for name in SHARDS_SCHEMA.names
    ]
    return pa.table(columns, schema=SHARDS_SCHEMA)
