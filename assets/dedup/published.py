"""The published side: what the newest version of a dataset has, as far as near-duplicates are concerned.

It is read for every batch: the samples tables of the dataset, one request per run, of which the columns named here are
decoded. No index is kept beside them: reading and filing a million samples costs seconds (measured in
docs/pipeline.md), and a stored index would have to be kept true to exclusions and retirements. Embeddings are read in
stretches, all of them for every batch, and are never held together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import loader
from loader.dataset.reading.read import read_fields
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
    """opened: the newest version, None before the first.

    table: its samples of photos and clips; candidates: of these, one for all that look the same to a hash and are in
    one split, the best; members: list of rows of `table`, each; n_unhashed: how many have no hash, and are compared
    with nothing.
    """

    opened: loader.Version | None
    table: "pl.DataFrame"
    candidates: Candidates
    members: "pl.Series"
    n_unhashed: int

    @property
    def version(self) -> str:
        """The id of the version that was read, "" for none."""
        return self.opened.id if self.opened else ""

    def keys(self, row: int) -> list[str]:
        """All samples that a candidate stands for."""
        found: list[str] = self.table["key"].gather(self.members[row]).to_list()
        return found


def published_samples(
    root: loader.Root, dataset: str, policy: NearDuplicates, but: Sequence[str] = ()
) -> Published:
    """Return what the newest version has.

    O(n log n) of its samples. but: keys that are not wanted, those of a batch that is in it already and is put together
    again. Raises: FieldMismatch for a hash that is not one.
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
    """Pairs (row of `new`, row of `published.candidates`) that are near, by row. Raises: FieldMismatch."""
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
    """(row of the first, embeddings) of consecutive candidates, in stretches; parts without the field have none."""
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
