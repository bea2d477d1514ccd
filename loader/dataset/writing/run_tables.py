"""Write the tables of one run of parts, which a change adds: shards, samples, stats, key hashes, exclusions."""

from collections.abc import Mapping, Sequence, Set

import pyarrow as pa

from ...errors import Conflict, EmptyVersion, FieldMismatch, InvalidKey, InvalidSample
from ...storage import Store
from ...storage.external_shards import FOREIGN
from ..shards.key_hashes import put_hashes
from ..shards.part import SHARDS_ROW_GROUP_ROWS, SHARDS_SCHEMA, Part, ShardFile
from ..tables.manifest import Change, GroupExtent
from ..tables.parquet import TableFile, get_tables, put_table
from .exclude import NO_EXCLUSIONS, NO_ROWS, Exclusions, RowsByReason, RowsToExclude, put_exclusions
from .run_samples import RunKeys, RunSamples


def check_parts(parts: Sequence[Part]) -> str:
    """Check parts before they are published; return their transaction.

    Raises: EmptyVersion; Conflict if two parts share an id; InvalidSample if parts belong to several transactions, or
    have another one's files.
    """
    if not parts:
        raise EmptyVersion("there is nothing to publish: no parts were given", what="parts", given=0)
    txns = sorted({part.txn for part in parts})
    if len(txns) > 1:
        first_txns = ", ".join(txns[:3])
        raise InvalidSample(
            f"these parts belong to {len(txns)} transactions ({first_txns}); publish each with its own, or "
            "write them all with the txn of one root.begin()",
            what="transactions",
            given=len(txns),
            accepted=1,
        )
    part_ids: set[str] = set()
    for part in parts:
        if not _has_own_files(part):  # parts that wait for a gate may have any name
            raise InvalidSample(
                f"part {part.id} was not written with transaction {part.txn}",
                what="part",
                given=part.id,
                accepted=f"a part of transaction {part.txn}",
            )
        if part.id in part_ids:
            raise Conflict(
                f"part {part.id} was given twice; publish one attempt of each part",
                what="part",
                given=part.id,
                accepted="each part once",
            )
        part_ids.add(part.id)
    if not any(part.n_rows for part in parts):
        raise EmptyVersion("there is nothing to publish: the parts have no samples")
    return txns[0]


def _has_own_files(part: Part) -> bool:
    """Return whether the part's transaction wrote all its files; registered objects belong to none."""
    paths = []
    for shard in part.shards:
        if shard.part != part.id:
            return False
        if not shard.path.startswith(FOREIGN):
            paths.append(shard.path)
        paths.append(shard.index_path)
    if part.samples is not None:
        paths.append(part.samples.path)
    folder = f"data/{part.txn}/"
    return all(path.startswith(folder) for path in paths)


def write_run(
    store: Store,
    prefix: str,
    parts: Sequence[Part],
    column_types: Mapping[str, str],
    exclude: Mapping[str, str],
    earlier_rows: RowsToExclude = NO_ROWS,
    samples: Sequence[pa.Table] | None = None,
    exclusions: Exclusions = NO_EXCLUSIONS,
) -> tuple[Change, RunKeys]:
    """Upload the run's tables under `prefix`; return (change, live keys that it adds).

    Costs one request per new part plus six, whatever the dataset's size.

    Args:
        store: Store of the root.
        prefix: Folder of the tables.
        parts: The run's parts, already uploaded.
        column_types: Column -> type in the dataset.
        exclude: Key -> reason, for samples of these parts.
        earlier_rows: Samples of earlier parts to exclude.
        samples: Samples table of each part, built on request; None reads the tables.
        exclusions: Standing exclusions, whose keys these parts may lack.

    Raises: DuplicateKey; FieldMismatch; InvalidKey for a missing key to exclude; Corrupt.
    """
    tables = samples
    if tables is None:
        tables = part_tables(store, parts)
    n_rows = sum(part.n_rows for part in parts)
    run = RunSamples(tables, n_rows, column_types)

    # Before anything is uploaded: a misspelt key in `exclude` raises here.
    own_rows, excluded_keys = _find_rows_to_exclude(run, exclude, exclusions)

    files, stats = run.put(store, prefix)
    exclusions_file, n_excluded = _put_run_exclusions(
        store,
        prefix,
        parts,
        own_rows,
        earlier_rows,
        # Only registrations and imports pass exclusions. A repeated one has the same prefix, and a person may have
        # excluded more samples since.
        by_content=bool(exclusions),
    )
    change = Change(
        shards=_put_shards(store, prefix, parts),
        samples=tuple(files),
        stats=stats,
        key_hashes=put_hashes(store, prefix, run.keys.hashes),
        groups=extents(parts),
        n_parts=len(parts),
        n_rows=n_rows,
        exclusions=exclusions_file,
        n_excluded=n_excluded,
    )
    if not excluded_keys:
        return change, run.keys
    return change, run.keys.without(excluded_keys)


def _put_run_exclusions(
    store: Store,
    prefix: str,
    parts: Sequence[Part],
    own_rows: RowsByReason,
    earlier_rows: RowsToExclude,
    *,
    by_content: bool,
) -> tuple[TableFile | None, int]:
    """Upload the exclusions of a run; return (their table, number of samples), or (None, 0) if there are none."""
    rows = {**own_rows, **earlier_rows.rows}  # new parts and earlier parts: no name is in both
    if not rows:
        return None, 0
    part_sizes = {part.id: part.n_rows for part in parts}
    part_sizes.update(earlier_rows.part_sizes)
    file = put_exclusions(
        store,
        prefix,
        rows,
        part_sizes,
        by_content=by_content,
    )
    return file, sum(len(members) for members in rows.values())


def _find_rows_to_exclude(
    run: RunSamples,
    exclude: Mapping[str, str],
    exclusions: Exclusions,
) -> tuple[RowsByReason, Set[str]]:
    """Return the run's own rows to exclude, and their keys. Raises: InvalidKey."""
    # A reason in the call counts before the reason of a standing exclusion.
    reasons = {key: exclusion.reason for key, exclusion in exclusions.items()}
    reasons.update(exclude)
    rows, unmatched = run.find_rows(reasons)
    missing = sorted(unmatched & exclude.keys())
    if missing:
        raise InvalidKey(
            f"exclude names {missing[0]!r}, which none of these parts has; pass keys of the parts",
            what="exclude",
            given=missing[0],
        )
    return rows, reasons.keys() - unmatched


def write_group_run(
    store: Store,
    prefix: str,
    parts: Sequence[Part],
) -> Change:
    """Upload the shards table of parts that only add a field group; return the change."""
    return Change(shards=_put_shards(store, prefix, parts), groups=extents(parts))


def _put_shards(
    store: Store,
    prefix: str,
    parts: Sequence[Part],
) -> TableFile:
    shards: list[ShardFile] = []
    for part in parts:
        shards.extend(part.shards)
    return put_table(
        store,
        f"{prefix}/shards.parquet",
        shards_table(shards),
        "shards",
        SHARDS_ROW_GROUP_ROWS,
    )


def part_tables(store: Store, parts: Sequence[Part]) -> list[pa.Table]:
    """Return each part's samples table. Raises: InvalidSample if a part has none; FieldMismatch; Corrupt."""
    files = []
    for part in parts:
        if part.samples is None:
            raise InvalidSample(
                f"part {part.id} has no samples table; root.publish takes parts made by write_part",
                what="samples table",
                where=f"part {part.id}",
            )
        files.append(part.samples)

    tables = []
    for part, table in zip(parts, get_tables(store, files), strict=True):
        # Only the row number joins a sample's fields and columns: one row less would shift all later samples.
        shard_rows = sorted({shard.n_rows for shard in part.shards})
        if {table.num_rows, *shard_rows} != {part.n_rows}:
            raise FieldMismatch(
                f"part {part.id} has {part.n_rows} rows; its samples table has {table.num_rows}, "
                f"its shards {shard_rows}",
                what="rows",
                where=part.id,
                given=[table.num_rows, *shard_rows],
                accepted=part.n_rows,
            )
        tables.append(table)
    return tables


def extents(parts: Sequence[Part]) -> dict[str, GroupExtent]:
    """Return group -> sizes that these parts add. Raises: FieldMismatch if parts of a group have other fields."""
    totals: dict[str, GroupExtent] = {}
    counted_paths: set[tuple[str, str]] = set()
    for part in parts:
        for shard in part.shards:
            group = shard.group
            total = totals.get(group)
            if total is None:
                no_bytes = dict.fromkeys(shard.field_nbytes, 0)
                total = GroupExtent(
                    field_nbytes=no_bytes,
                    n_parts=0,
                    n_rows=0,
                    nbytes=0,
                )
            if set(total.field_nbytes) != set(shard.field_nbytes):
                raise FieldMismatch(
                    f"group {group!r} has fields {sorted(total.field_nbytes)} in the first part and "
                    f"{sorted(shard.field_nbytes)} in part {part.id}; all parts of a group have the same fields",
                    what="fields",
                    where=f"part {part.id}",
                    given=sorted(shard.field_nbytes),
                    accepted=sorted(total.field_nbytes),
                )

            # Several parts may share one registered object, whose bytes count once.
            nbytes = total.nbytes
            if (group, shard.path) not in counted_paths:
                nbytes += shard.nbytes
            counted_paths.add((group, shard.path))
            field_nbytes = {}
            for field, shard_nbytes in shard.field_nbytes.items():
                field_nbytes[field] = shard_nbytes + total.field_nbytes[field]
            totals[group] = GroupExtent(
                field_nbytes=field_nbytes,
                n_parts=total.n_parts + 1,
                n_rows=total.n_rows + shard.n_rows,
                nbytes=nbytes,
            )
    return totals


def shards_table(shards: Sequence[ShardFile]) -> pa.Table:
    columns = []
    for field in SHARDS_SCHEMA:
        values = [getattr(shard, field.name) for shard in shards]
        columns.append(pa.array(values, field.type))
    return pa.table(columns, schema=SHARDS_SCHEMA)
