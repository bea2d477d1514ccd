"""The published side of near-duplicates: samples of the newest version of a dataset.

It is read for every batch: the samples tables of the dataset, one request per run, of which the columns named here are
decoded. No index is kept beside them: reading and filing a million samples costs seconds (measured in
docs/pipeline.md). A stored index would have to be kept true to exclusions and retirements. Embeddings are read in
stretches, all of them for every batch, and are never held together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.versions.samples_table import scan_samples
from loader.modalities import decoder_for

from .embeddings import Embeddings, embeddings_of, near_embeddings
from .hamming import Int64s
from .pictures import Matches, file_pictures, find, merged
from .policy import KINDS, NearDuplicates
from .settle import Candidates
from .table import looks, schema, typed

if TYPE_CHECKING:
    import polars as pl

EMBEDDINGS_AT_ONCE = 4096
"""Samples whose embeddings are in memory together: 8 MiB of 512 numbers each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Photos and clips of the newest version of a dataset."""

    opened: loader.Version | None
    """Newest version; None before the first."""
    table: "pl.DataFrame"
    """Its samples of photos and clips."""
    candidates: Candidates
    """Best sample of each look and split, or each sample of its own: see `looks`."""
    members: "pl.Series"
    """List of rows of `table` for each candidate: its group."""
    n_unhashed: int
    """Number of samples that have no hash, and are compared with nothing."""

    @property
    def version(self) -> str:
        """ID of the version that was read; "" for none."""
        return self.opened.id if self.opened else ""

    def keys(self, row: int) -> list[str]:
        """Return the keys of all samples that a candidate stands for."""
        found: list[str] = self.table["key"].gather(self.members[row]).to_list()
        return found


def published_samples(
    root: loader.Root, dataset: str, policy: NearDuplicates, but: Sequence[str] = ()
) -> Published:
    """Return the photos and clips of the newest version.

    O(n log n) of its samples. but: keys to leave out, of a batch that is in the version already and is put together
    again.

    Raises: FieldMismatch for a hash that is not one.
    """
    newest = root.state.newest(dataset)
    version = root.open(newest.id) if newest else None
    there = version.manifest["columns"] if version else {}
    wanted = [name for name in schema() if name in there or name in ("key", "split")]
    table = typed(scan_samples(version, wanted).collect()) if version else typed({})
    table = table.filter(table["kind"].is_in(KINDS) & ~table["key"].is_in(list(but)))
    candidates, members = looks(table, alone=policy.embedding is not None)
    return Published(
        opened=version,
        table=table,
        candidates=candidates,
        members=members,
        n_unhashed=table["phash"].null_count(),
    )


def near_published(new: Candidates, published: Published, policy: NearDuplicates) -> Matches:
    """Return pairs (row of `new`, row of `published.candidates`) that are near, by row. Raises: FieldMismatch."""
    there = published.candidates
    found = [find(file_pictures(there.pictures, policy.max_distance), new.pictures, mirrored=policy.mirrored)]
    if policy.embedding and new.embeddings:
        for first, embeddings in _embeddings(published, policy.embedding.field):
            near = near_embeddings(new.embeddings, embeddings, policy.embedding.min_cosine)
            found.append(near.shifted(first))
    pairs = merged(*found)
    kind = new.pictures.kind[pairs.query]
    return pairs.take((kind == there.pictures.kind[pairs.row]) & (kind >= 0))


def _embeddings(published: Published, field: str) -> Iterator[tuple[int, Embeddings]]:
    """Yield (row of the first, embeddings) of consecutive candidates; parts without the field have none."""
    version = published.opened
    if version is None or field not in version.fields:
        return
    decode, has = decoder_for(field), version.parts.has_group(version.group_of(field))
    rows: Int64s = published.members.list.first().to_numpy().astype(np.int64)
    ordinals = published.table["ordinal"].to_numpy()[rows]
    pins: dict[str, str] = {}
    for first in range(0, len(ordinals), EMBEDDINGS_AT_ONCE):
        some = ordinals[first : first + EMBEDDINGS_AT_ONCE]
        there = np.flatnonzero(has[version.parts.locate(some)[0]])
        addresses = version.address(some[there], [field])
        vectors: list[Any] = [None] * len(some)
        for place, read in zip(
            there.tolist(), read_fields(version.shard_store, addresses, pins=pins), strict=True
        ):
            vectors[place] = decode(read[field], None) if read[field] else None
        yield first, embeddings_of(vectors)
