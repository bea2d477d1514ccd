"""Samples that a verdict names, and some of its baseline, to look at beside each other.

They are drawn as on the dataset's card, and bounded.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import loader
from loader.dataset.log.denies import DenyList
from loader.dataset.shards.address import SampleAddress
from loader.dataset.writing.part_extension import part_address
from loader.errors import MissingDependency, StoreError
from loader.storage import RangeReader
from penstock.card.classes import modality_of, part_fields
from penstock.card.examples import address_at, example_of
from penstock.card.value import Example
from penstock.stages import StageRecord

from ..checks.outcome import CheckResult
from ..stages import reader_of
from .facts import Baseline

if TYPE_CHECKING:
    import polars as pl

MAX_EXAMPLES, MAX_OF_FINDING = 12, 3
"""Most samples of a page, and of one finding."""
MAX_NBYTES = 2**20
"""Most bytes of all pictures of a page; those that would go beyond are left out."""
MAX_KINDS = 3
"""Most kinds of samples that are shown of the baseline."""
Shown = list[tuple[str, Example]]
_log = logging.getLogger(__name__)


def shown_of(
    root: loader.Root, samples: StageRecord, table: "pl.DataFrame", results: Sequence[CheckResult]
) -> Shown:
    """Return (finding in words, a sample that shows it), in the order of the findings, each sample once.

    [] where the packages that draw are not installed.

    table: the batch's rows. A finding shows samples of different objects as long as there are; an object that it names
    shows its first sample; samples that are taken down are never shown. Reads an index row group and the fields of at
    most a dozen samples.

    Raises: StoreError.
    """
    parts = {part.id: part for part in map(loader.Part.from_json, samples.body["parts"])}
    store = reader_of(root.store, samples)
    found: Shown = []
    nbytes = 0
    try:
        for words, row in _chosen(results, _live(root, samples.dataset, table)):
            example = _example(store, parts[row["part"]], row)
            nbytes += len(example.picture)
            if nbytes > MAX_NBYTES or len(found) == MAX_EXAMPLES:
                break
            found.append((words, example))
    except MissingDependency:
        return []
    return found


def before_of(root: loader.Root, baseline: Baseline, shown: Shown) -> Shown:
    """Return (kind and version in words, a sample of the baseline) for each kind of sample in `shown`, in its order.

    They are of the newest batch that has some, by the hash of their keys, of different objects as long as there are.
    Samples that are taken down are never shown. One that cannot be read is passed over: no verdict waits for its
    picture.

    Reads an index row group and the fields of at most nine samples. O(rows) time.
    """
    found: Shown = []
    nbytes = 0
    for kind in list(dict.fromkeys(example.kind for _, example in shown))[:MAX_KINDS]:
        for row in _earlier(root, baseline, kind):
            try:
                example = _of_version(root, baseline.version, row)
            except (StoreError, MissingDependency) as error:
                _log.warning("%s of %s is not drawn: %s", row["key"], baseline.version.name, error)
                continue
            nbytes += len(example.picture)
            if nbytes > MAX_NBYTES:
                return found
            found.append((f"{kind} in {baseline.version.name}", example))
    return found


def _earlier(root: loader.Root, baseline: Baseline, kind: str) -> list[dict[str, Any]]:
    """Return rows of one kind."""
    import polars as pl

    for batch in baseline.batches:
        table = _live(root, baseline.version.dataset, batch.samples)
        if "kind" in table.columns:
            table = table.filter(pl.col("kind") == kind)
        if len(table):
            names = [name for name in ("key", "raw_key") if name in table.columns]
            rows = sorted(table.select(names).iter_rows(named=True), key=lambda row: _hash(row["key"]))
            keys = [row["key"] for row in _different(rows)[:MAX_OF_FINDING]]
            found = {row["key"]: row for row in table.filter(pl.col("key").is_in(keys)).iter_rows(named=True)}
            return [found[key] for key in keys]
    return []


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _different(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first row of each object, and then the others."""
    firsts = set({row.get("raw_key"): row["key"] for row in reversed(rows)}.values())
    return sorted(rows, key=lambda row: row["key"] not in firsts)


def _chosen(results: Sequence[CheckResult], table: "pl.DataFrame") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (finding in words, row)."""
    rows = _rows(table, {str(key) for one in results for found in one.findings for key in found["keys"]})
    seen: set[str] = set()
    for finding in (found for one in results for found in one.findings):
        named = [rows[str(key)] for key in finding["keys"] if str(key) in rows]
        unseen = {row["key"]: row for row in named if row["key"] not in seen}
        fresh = _different(list(unseen.values()))[:MAX_OF_FINDING]
        seen |= {row["key"] for row in fresh}
        of = f" of {finding['of']}" if finding["of"] else ""
        for row in fresh:
            yield f"{finding['what']}: {finding['column']}{of}", row


def _rows(table: "pl.DataFrame", names: set[str]) -> dict[str, dict[str, Any]]:
    """Return key of a sample, or of the object that it was cut of -> its row."""
    import polars as pl

    found: dict[str, dict[str, Any]] = {}
    for column in ("raw_key", "key"):
        if names and column in table.columns:
            mine = table.filter(pl.col(column).is_in(sorted(names))).unique(
                column, keep="first", maintain_order=True
            )
            found |= {row[column]: row for row in mine.iter_rows(named=True)}
    return found


def _live(root: loader.Root, dataset: str, table: "pl.DataFrame") -> "pl.DataFrame":
    """Return the rows that no takedown denies."""
    import polars as pl
    import pyarrow as pa

    denies = root.state.denies
    if not denies or not len(table):
        return table
    tests = DenyList(denies, dataset)
    known = [name for name in tests.columns if name in table.columns]
    keys = pa.table({name: pa.array(table[name].to_list(), pa.string()) for name in known})
    return table.filter(pl.Series(tests.entries(keys) == 0))


def _example(store: RangeReader, part: loader.Part, row: dict[str, Any]) -> Example:
    fields = {name for shard in part.shards for name in shard.field_nbytes}
    return _drawn(store, fields, partial(part_address, store, part, int(row["row"])), row)


def _of_version(root: loader.Root, version: loader.Version, row: dict[str, Any]) -> Example:
    place = version.parts.position(row["part"]), int(row["row"])
    return _drawn(
        version.placed or root.store, part_fields(version, place[0]), partial(address_at, version, place), row
    )


def _drawn(
    store: RangeReader,
    fields: frozenset[str] | set[str],
    find: Callable[[Sequence[str]], SampleAddress],
    row: dict[str, Any],
) -> Example:
    modality = modality_of(fields)
    return example_of(store, str(row.get("kind") or modality), modality, fields, find, row)
