"""Find near-duplicates in a dataset's newest version, which is read again for each batch.

No index is stored, because indexing a million samples takes seconds (docs/pipeline.md), and a stored index would have
to follow exclusions. Embeddings are read in chunks, never all at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.versions.samples_table import scan_samples
from loader.modalities import decoder_for

from .hamming import Int64s
from .near_pairs import Embeddings, NearPairs, embeddings_of, find, index_images, merged, near_embeddings
from .policy import KINDS, NearDuplicates
from .settle import Candidates, looks, schema, typed

if TYPE_CHECKING:
    import polars as pl

EMBEDDINGS_AT_ONCE = 4096
"""Samples whose embeddings are read at once: 8 MiB at 512 dimensions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Photos and clips of the newest version."""

    opened: loader.Version | None
    """Newest version; None before the first."""
    table: "pl.DataFrame"
    """Rows of the version's photos and clips."""
    candidates: Candidates
    """Samples to compare: one per look and split, or all of them (see `looks`)."""
    members: "pl.Series"
    """Rows of `table` that each candidate represents."""
    n_unhashed: int
    """Number of samples without a hash, which are not compared."""

    @property
    def version(self) -> str:
        """Id of the version; "" if there is none."""
        return self.opened.id if self.opened else ""

    def keys(self, row: int) -> list[str]:
        """Return the keys of all samples that a candidate represents."""
        keys_: list[str] = self.table["key"].gather(self.members[row]).to_list()
        return keys_


def published_samples(
    root: loader.Root, dataset: str, policy: NearDuplicates, but: Sequence[str] = ()
) -> Published:
    """Return the newest version's photos and clips, in O(n log n).

    but: keys to leave out because their batch is being reassembled. Raises: FieldMismatch for an invalid hash.
    """
    newest = root.state.newest(dataset)
    version = root.open(newest.id) if newest else None
    columns = version.manifest["columns"] if version else {}
    names = [name for name in schema() if name in columns or name in ("key", "split")]
    table = typed(scan_samples(version, names).collect()) if version else typed({})
    table = table.filter(table["kind"].is_in(KINDS) & ~table["key"].is_in(list(but)))
    candidates, members = looks(table, ungrouped=policy.embedding is not None)
    return Published(
        opened=version,
        table=table,
        candidates=candidates,
        members=members,
        n_unhashed=table["phash"].null_count(),
    )


def near_published(new: Candidates, published: Published, policy: NearDuplicates) -> NearPairs:
    """Return near pairs (row of `new`, row of `published.candidates`), sorted. Raises: FieldMismatch."""
    candidates = published.candidates
    pairs_ = [
        find(index_images(candidates.pictures, policy.max_distance), new.pictures, mirrored=policy.mirrored)
    ]
    if policy.embedding and new.embeddings:
        for first, embeddings in _embeddings(published, policy.embedding.field):
            near = near_embeddings(new.embeddings, embeddings, policy.embedding.min_cosine)
            pairs_.append(near.shifted(first))
    pairs = merged(*pairs_)
    kind = new.pictures.kind[pairs.query]
    return pairs.take((kind == candidates.pictures.kind[pairs.row]) & (kind >= 0))


def _embeddings(published: Published, field: str) -> Iterator[tuple[int, Embeddings]]:
    """Yield (row of the first candidate, embeddings) of consecutive chunks; empty for parts without the field."""
    version = published.opened
    if version is None or field not in version.fields:
        return
    decode, has = decoder_for(field), version.parts.has_group(version.group_of(field))
    rows: Int64s = published.members.list.first().to_numpy().astype(np.int64)
    ordinals = published.table["ordinal"].to_numpy()[rows]
    pins: dict[str, str] = {}
    for first in range(0, len(ordinals), EMBEDDINGS_AT_ONCE):
        chunk = ordinals[first : first + EMBEDDINGS_AT_ONCE]
        present = np.flatnonzero(has[version.parts.locate(chunk)[0]])
        addresses = version.address(chunk[present], [field])
        vectors: list[Any] = [None] * len(chunk)
        for place, read in zip(
            present.tolist(), read_fields(version.shard_store, addresses, pins=pins), strict=True
        ):
            vectors[place] = decode(read[field], None) if read[field] else None
        yield first, embeddings_of(vectors)
