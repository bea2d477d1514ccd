"""Save, list, compare and remove slices: samples that a person named, to train on or to leave out.

A list holds samples of one version and outlives it. A rule holds an SQL expression and grows with versions
(docs/format.md, "Slices").
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from ..errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    FormatTooNew,
    InvalidSample,
    ObjectNotFound,
    SliceNotFound,
)
from ..json_text import is_text
from ..order.sources.views import list_sha256
from ..storage.threads import DaemonPool
from .log.marker import check_primary
from .names import check_stated
from .root_calls import RootCalls
from .slice_samples import key_column, ordinals_of_samples, sample_keys
from .tables.parquet import Int64s, take_rows
from .tables.slice_record import (
    FOLDER,
    SliceRecord,
    check_record_size,
    check_slice_name,
    path_parts,
    read_slice,
    slice_folder,
    slice_numbers,
    slice_table,
    slice_table_bytes,
)
from .tables.table_rows import distinct
from .versions.slice_members import MISSING, locate_list, missing_keys, slice_ordinals
from .versions.version import Version, View

Samples: TypeAlias = "str | View | Collection[str] | Sequence[int] | Int64s"
"""SQL text; or a view, keys or version ordinals."""
TRIES = 16
"""Tries to get a number, each after another saver took it."""
_READS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceListing:
    """Slices of a root or of one dataset."""

    slices: tuple[SliceRecord, ...]
    """Newest number of each slice that is not removed, by dataset and name."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Path of a damaged record -> what is wrong with it."""
    unread: tuple[str, ...] = ()
    """Slices that were not read, such as `photos/cups`, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSlice:
    """A slice, and what a version has of it."""

    record: SliceRecord
    """The slice's number that is shown."""
    numbers: tuple[int, ...]
    """All numbers of the slice, ascending."""
    version: str
    """Version in which the samples were looked for, such as `photos@8`."""
    n_samples: int
    """Samples that it has."""
    missing: tuple[str, ...]
    """Keys of a list's samples that it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceDifference:
    """Samples that two numbers of a slice do not share, in one version."""

    dataset: str
    """Dataset name."""
    name: str
    before: int
    """Earlier number."""
    after: int
    """Later number."""
    version: str
    """Version in which the samples were looked for, such as `photos@8`."""
    added: tuple[str, ...]
    """Keys of samples that only `after` has, in version order."""
    removed: tuple[str, ...]
    """Keys of samples that only `before` has, in version order."""


def save_slice(
    root: RootCalls,
    ref: str,
    name: str,
    samples: Samples,
    *,
    by: str,
    why: str,
    page: str = "",
) -> SliceRecord:
    """Store samples of a version as the slice's next number. The newest number again, if it has equal content.

    samples: keys, version ordinals, or a view of the version: a list, of 1e7 samples at most. SQL text: a rule.
    by: person's name. why: person's reason. page: URL of the page on which the samples were chosen, or "".

    Raises: InvalidName; SampleNotFound for an unknown key; EmptyView for a list without samples; InvalidSample for
    other values; InvalidPlan for a view of another version; FieldNotFound for a rule that is no expression; Conflict
    in a mirror; Corrupt if the newest number is damaged.
    """
    check_slice_name(name)
    check_stated("name of the slice's author", by)
    check_stated("reason of the slice", why)
    if not is_text(page):
        raise InvalidSample(
            f"page = {page!r} is not text; pass an address, or nothing",
            what="page",
            given=page,
            accepted="an address, or nothing",
        )
    version = root.open(ref)
    where = samples if isinstance(samples, str) else ""
    ordinals = ordinals_of_samples(version, name, samples)
    _check_writable(root)
    record = SliceRecord(
        dataset=version.dataset,
        name=name,
        n=1,
        version=version.name,
        version_id=version.id,
        kind="rule" if isinstance(samples, str) else "list",
        sha256=list_sha256(ordinals),
        where=where,
        n_samples=len(ordinals),
        by=by,
        why=why,
        page=page,
    )
    check_record_size(record)
    return _store_next(version, record, ordinals)


def remove_slice(root: RootCalls, dataset: str, name: str, *, by: str, why: str) -> SliceRecord:
    """End a slice, and return the record of it. Plans with its numbers stay as they are.

    Raises: SliceNotFound, also for a slice that was removed; InvalidName; Conflict in a mirror.
    """
    check_stated("name of who removes the slice", by)
    check_stated("reason of the removal", why)
    _check_writable(root)
    for _ in range(TRIES):
        newest = read_slice(root.store, dataset, name)
        if newest.removed:
            raise _removal_error(newest)
        end = SliceRecord(
            dataset=dataset,
            name=name,
            n=newest.n + 1,
            version=newest.version,
            version_id=newest.version_id,
            kind=newest.kind,
            sha256=newest.sha256,
            where=newest.where,
            n_samples=newest.n_samples,
            by=by,
            why=why,
            page="",
            removed=True,
        )
        try:
            root.store.put_if_absent(end.path, end.to_bytes())
        except AlreadyExists:  # another person saved a number meanwhile
            continue
        return end
    raise _busy(dataset, name)


def list_slices(
    root: RootCalls, dataset: str | None = None, *, most: int | None = None, first: int = 0
) -> SliceListing:
    """Return the slices of a dataset, or of all. Costs a listing, and a request per slice, sixteen at a time.

    most: slices to read, those written last; None reads all. first: number of later ones to leave out.
    """
    folder = FOLDER if dataset is None else f"{FOLDER}{dataset}/"
    newest: dict[tuple[str, str], int] = {}
    written_us: dict[tuple[str, str], int] = {}
    nbytes: dict[tuple[str, str], int] = {}
    for info in root.store.list(folder):
        parts = path_parts(info.key)
        if parts is None or not info.key.endswith(".json"):
            continue
        slice_dataset, name, n = parts
        known_n = newest.get((slice_dataset, name), 0)
        if n > known_n:
            newest[slice_dataset, name] = n
            written_us[slice_dataset, name] = info.modified_us or 0
            nbytes[slice_dataset, name] = info.nbytes

    def by_age(entry: tuple[str, str]) -> int:
        return -written_us[entry]

    entries = sorted(newest)
    unread: list[tuple[str, str]] = []
    if most is not None and (first or len(entries) > most):
        youngest_first = sorted(entries, key=by_age)
        chosen = youngest_first[first : first + most]
        unread = sorted(set(entries) - set(chosen))
        entries = sorted(chosen)
    damaged: dict[str, str] = {}

    def read(entry: tuple[str, str]) -> SliceRecord | None:
        slice_dataset, name = entry
        n = newest[entry]
        try:
            return read_slice(root.store, slice_dataset, name, n, nbytes=nbytes[entry])
        except (Corrupt, FormatTooNew, ValueError) as error:  # also a folder of no dataset's name
            damaged[f"{FOLDER}{slice_dataset}/{name}/{n:06d}.json"] = str(error)
        except SliceNotFound:  # a takedown deleted it meanwhile
            pass
        return None

    with DaemonPool(_READS_AT_ONCE, "penstock-slices") as pool:
        records = list(pool.map(read, entries))
    current = tuple(record for record in records if record is not None and not record.removed)
    return SliceListing(
        slices=current,
        damaged=damaged,
        unread=tuple(f"{slice_dataset}/{name}" for slice_dataset, name in unread),
    )


def show_slice(
    root: RootCalls, dataset: str, name: str, n: int | None = None, *, ref: str = ""
) -> ShownSlice:
    """Return a slice, and what a version has of it. ref: None is the dataset's newest version.

    Raises: SliceNotFound; VersionNotFound; Corrupt.
    """
    record = read_slice(root.store, dataset, name, n)
    numbers = slice_numbers(root.store, dataset, name)
    version = root.open(ref or dataset)
    n_samples = 0
    missing: list[str] = []
    # The record of a removal has no samples: show the ones of the former number.
    for number in sorted((one for one in numbers if one <= record.n), reverse=True):
        numbered = read_slice(root.store, dataset, name, number)
        if not numbered.removed:
            n_samples = len(slice_ordinals(version, numbered))
            missing = missing_keys(version, numbered)
            break
    return ShownSlice(
        record=record,
        numbers=tuple(numbers),
        version=version.name,
        n_samples=n_samples,
        missing=tuple(missing),
    )


def diff_slices(
    root: RootCalls, dataset: str, name: str, before: int | None = None, after: int | None = None
) -> SliceDifference:
    """Return the samples that two numbers of a slice do not share, in the dataset's newest version.

    before, after: None are the last two numbers with samples. Raises: SliceNotFound; VersionNotFound; Corrupt.
    """
    if before is None or after is None:
        records = [read_slice(root.store, dataset, name, n) for n in slice_numbers(root.store, dataset, name)]
        numbers = [record.n for record in records if not record.removed]
        if len(numbers) < 2:
            raise SliceNotFound(
                f"the slice {dataset}/{name} has {len(numbers)} numbers; two are compared",
                what="numbers",
                where=f"{dataset}/{name}",
                given=len(numbers),
                accepted=2,
            )
        before, after = numbers[-2:]
    version = root.open(dataset)
    of_before = slice_ordinals(version, read_slice(root.store, dataset, name, before))
    of_after = slice_ordinals(version, read_slice(root.store, dataset, name, after))
    return SliceDifference(
        dataset=dataset,
        name=name,
        before=before,
        after=after,
        version=version.name,
        added=tuple(sample_keys(version, np.setdiff1d(of_after, of_before))),
        removed=tuple(sample_keys(version, np.setdiff1d(of_before, of_after))),
    )


def slice_keys(version: Version, name: str, n: int | None = None) -> tuple[SliceRecord, list[str]]:
    """Return a slice and the keys of its samples in a version, in version order.

    Raises: SliceNotFound, also for a removed slice; Corrupt.
    """
    record = read_slice(version.store, version.dataset, name, n)
    if record.removed:
        raise _removal_error(record)
    return record, sample_keys(version, slice_ordinals(version, record))


def _check_writable(root: RootCalls) -> None:
    root.create()
    check_primary(root.store, root.state)


def _store_next(version: Version, record: SliceRecord, ordinals: Int64s) -> SliceRecord:
    """Store the record under the next number, and a list's table before it."""
    store = version.store
    table: pa.Table | None = None
    if record.kind == "list":
        table = _table(version, ordinals)
    n = 0
    for _ in range(TRIES):
        numbers = slice_numbers(store, record.dataset, record.name)
        newest_number = numbers[-1] if numbers else 0
        if newest_number:
            newest = read_slice(store, record.dataset, record.name, newest_number)
            if _is_equal(version, newest, record):
                return newest
        n = max(n, newest_number) + 1
        numbered = replace(record, n=n)
        try:
            if table is not None:
                _put_table(version, numbered, table)
            store.put_if_absent(numbered.path, numbered.to_bytes())
        except AlreadyExists:  # another saver took the number
            continue
        return numbered
    raise _busy(record.dataset, record.name)


def _put_table(version: Version, record: SliceRecord, table: pa.Table) -> None:
    """Store a list's table. Raises: AlreadyExists if the number has another one."""
    data = slice_table_bytes(record, table)
    try:
        version.store.put_if_absent(record.table_path, data)
    except AlreadyExists:
        # Of a saver of the same samples, or of one that ended before its record: then the number is still free.
        try:
            if version.store.get(record.table_path).data == data:
                return
        except ObjectNotFound:  # a takedown deleted it meanwhile
            pass
        raise


def _is_equal(version: Version, newest: SliceRecord, record: SliceRecord) -> bool:
    """Return whether the newest number has the content of a record of this version."""
    if newest.removed or newest.kind != record.kind:
        return False
    if record.kind == "rule":
        return newest.where == record.where
    if newest.n_samples != record.n_samples:
        return False
    if newest.version_id == record.version_id:
        return newest.sha256 == record.sha256
    located = locate_list(version, newest)
    return not (located == MISSING).any() and list_sha256(distinct(located)) == record.sha256


def _table(version: Version, ordinals: Int64s) -> pa.Table:
    positions, rows = version.parts.locate(ordinals)
    parts = take_rows(version.parts.ids, positions)
    keys = key_column(version, ordinals)
    return slice_table(ordinals, parts, rows, keys)


def _busy(dataset: str, name: str) -> Conflict:
    folder = slice_folder(dataset, name)
    return Conflict(
        f"{TRIES} others saved {folder} meanwhile; look at it with penstock slice show, and try again",
        what="slice",
        where=folder,
        given=TRIES,
    )


def _removal_error(record: SliceRecord) -> SliceNotFound:
    return SliceNotFound(
        f"the slice {record.full_name} was removed by {record.by}: {record.why}",
        what="slice",
        where=record.full_name,
        given=record.why,
    )
