"""Find near-duplicates of a batch's samples, in the batch and in the newest version, and decide which samples stay."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.versions.samples_table import scan_samples
from loader.dataset.writing.part_extension import read_part
from loader.modalities import find_decoder
from loader.storage import Store

from .document_copies import DocumentCopies, document_copies
from .hamming import Int64s
from .near_pairs import (
    Embeddings,
    NearPairs,
    find,
    index_images,
    merge_pairs,
    near_embeddings,
    stack_embeddings,
)
from .policy import KINDS, TEXT, NearDuplicates
from .settle import (
    MINHASH,
    Candidates,
    DuplicateOf,
    best_of_groups,
    cast_columns,
    compared_frame,
    schema,
    settle,
    table_candidates,
)

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
    """Samples to compare (see `looks`)."""
    members: "pl.Series"
    """Rows of `table` per candidate."""
    n_unhashed: int
    """Samples without a hash."""

    @property
    def version(self) -> str:
        """Id of the version or ""."""
        if self.opened:
            return self.opened.id
        return ""

    def keys(self, row: int) -> list[str]:
        """Return the keys of all samples that a candidate represents."""
        keys_: list[str] = self.table["key"].gather(self.members[row]).to_list()
        return keys_


def published_samples(
    root: loader.Root,
    dataset: str,
    policy: NearDuplicates,
    but: Sequence[str] = (),
) -> Published:
    """Return the newest version's photos and clips, in O(n log n). but: keys to leave out.

    Raises: FieldMismatch for an invalid hash.
    """
    return version_samples(newest_version(root, dataset), policy, but)


def newest_version(root: loader.Root, dataset: str) -> loader.Version | None:
    """Return the newest version, opened; None before the first."""
    newest = root.state.newest(dataset)
    if newest is None:
        return None
    return root.open(newest.id)


def version_samples(
    version: loader.Version | None, policy: NearDuplicates, but: Sequence[str] = ()
) -> Published:
    """Return a version's photos and clips, as `published_samples`."""
    if version:
        columns = version.manifest["columns"]
    else:
        columns = {}
    names = [name for name in schema() if name in columns or name in ("key", "split")]
    if version:
        table = cast_columns(scan_samples(version, names).collect())
    else:
        table = cast_columns({})
    table = table.filter(table["kind"].is_in(KINDS) & ~table["key"].is_in(list(but)))
    candidates, members = best_of_groups(table, grouped=policy.embedding is None)
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
    images = index_images(candidates.pictures, policy.max_distance)
    searches = [find(images, new.pictures, mirrored=policy.mirrored)]
    if policy.embedding and new.embeddings:
        for first, embeddings in _embeddings(published, policy.embedding.field):
            near = near_embeddings(new.embeddings, embeddings, policy.embedding.min_cosine)
            searches.append(near.shifted(first))  # from rows of the chunk to rows of the candidates
    pairs = merge_pairs(*searches)
    # int64 [pairs]: kind of the new sample; below 0 if it is not compared.
    kind = new.pictures.kind[pairs.query]
    is_same_kind = kind == candidates.pictures.kind[pairs.row]
    return pairs.take(is_same_kind & (kind >= 0))


def _embeddings(published: Published, field: str) -> Iterator[tuple[int, Embeddings]]:
    """Yield (row of the first candidate, embeddings of it and the following ones), chunk by chunk."""
    version = published.opened
    if version is None or field not in version.fields:
        return
    decode = find_decoder(field)
    has_field = version.parts.has_group(version.group_of(field))  # bool [parts]
    # int64 [candidates]: best row of each.
    rows: Int64s = published.members.list.first().to_numpy().astype(np.int64)
    ordinals = published.table["ordinal"].to_numpy()[rows]
    pins: dict[str, str] = {}
    for first in range(0, len(ordinals), EMBEDDINGS_AT_ONCE):
        chunk = ordinals[first : first + EMBEDDINGS_AT_ONCE]
        # int64 [k]: places in the chunk whose parts have the field.
        positions, _ = version.parts.locate(chunk)
        present = np.flatnonzero(has_field[positions])
        addresses = version.address(chunk[present], [field])
        samples = read_fields(version.shard_store, addresses, pins=pins)
        vectors: list[Any] = [None] * len(chunk)
        for place, sample in zip(present.tolist(), samples, strict=True):
            if sample[field]:
                vectors[place] = decode(sample[field], None)
        yield first, stack_embeddings(vectors)


CODE = "near_duplicate"
"""Code of an object whose samples are all near-duplicates."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCopies:
    """Near-duplicates among a batch's samples."""

    compared_with: str | None = None
    """Id of the version compared with; "" before the first, None without a policy."""
    of: Mapping[str, DuplicateOf] = field(default_factory=dict)
    """Sample key -> its original."""
    supersede: Mapping[str, str] = field(default_factory=dict)
    """Published key -> why it is replaced."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Name -> count from the comparison."""

    def columns(self, key: str) -> Row:
        """Return the sample's dup_of, dup_by and how near it is; {} if it is not a near-duplicate."""
        copy = self.of.get(key)
        if copy is None:
            return {}
        columns: Row = {"dup_of": copy.of, "dup_by": copy.by}
        if copy.by == MINHASH:
            columns["dup_similarity"] = round(1 - copy.distance, 6)
        elif copy.by == "embedding":
            columns["dup_cosine"] = 1 - copy.distance
        else:
            columns["dup_distance_bits"] = int(copy.distance)
        return columns


NONE = BatchCopies()


def find_copies(
    root: loader.Root,
    dataset: str,
    policy: NearDuplicates,
    samples: Sequence[Row],
    parts: Sequence[loader.Part],
    landed: Sequence[Row],
    replaced: Collection[str] = (),
) -> BatchCopies:
    """Find a batch's near-duplicates, and decide which samples stay.

    samples: rows that nothing else leaves out. landed: rows of raw_objects, in landing order. replaced: keys of
    published samples that these replace. Costs as `dedup.near_duplicates` and `dedup.hamming`. Raises: FieldMismatch;
    Corrupt.
    """
    landing_order = {row["key"]: position for position, row in enumerate(landed)}
    last = len(landing_order)  # of an object that is not among them
    # In landing order, since the first of equal samples stays.
    rows = sorted(samples, key=lambda row: (landing_order.get(row["raw_key"], last), row["key"]))
    newest = newest_version(root, dataset)
    # A sample is not a copy of the published one that it replaces, which has its key or is named in `replaced`.
    but = [*(row["key"] for row in samples), *replaced]
    images = [row for row in rows if row["kind"] in KINDS]
    copies = BatchCopies(compared_with=newest.id if newest else "")
    # Without a search among documents, the counts of a batch come from here, also if it has no image.
    if images or policy.text is None:
        copies = _image_copies(root, newest, policy, images, parts, but)
    if policy.text is not None:
        keys = [row["key"] for row in rows if row["kind"] == TEXT]
        documents = document_copies(root, newest, policy, policy.text, keys, parts, set(but))
        copies = _with_documents(copies, documents)
    return copies


def _with_documents(copies: BatchCopies, documents: DocumentCopies) -> BatchCopies:
    """Return the copies among images and documents together, with their counts added."""
    counts = {
        "near_duplicates": len(documents.of),
        "superseded": 0,
        "compared_with": documents.n_compared,
        "published_without_hash": documents.n_unhashed,
    }
    for name, n in copies.counts.items():
        counts[name] += n
    return replace(copies, of={**copies.of, **documents.of}, counts=counts)


def _image_copies(
    root: loader.Root,
    newest: loader.Version | None,
    policy: NearDuplicates,
    rows: Sequence[Row],
    parts: Sequence[loader.Part],
    but: Sequence[str],
) -> BatchCopies:
    """Find the copies among photos and clips. rows: in landing order."""
    table = compared_frame(rows)
    embeddings = None
    if policy.embedding:
        embeddings = _embeddings_of_parts(root.store, parts, table["key"].to_list(), policy.embedding.field)
    new = table_candidates(table, [row["raw_sha256"] for row in rows], embeddings)
    published = version_samples(newest, policy, but)
    settled = settle(new, published.candidates, near_published(new, published, policy), policy)
    supersede = {key: copy.reason for row, copy in settled.superseded.items() for key in published.keys(row)}
    return BatchCopies(
        compared_with=published.version,
        of=settled.copies,
        supersede=supersede,
        counts={
            "near_duplicates": len(settled.copies),
            "superseded": len(supersede),
            "compared_with": len(published.table),
            "published_without_hash": published.n_unhashed,
        },
    )


def _embeddings_of_parts(
    store: Store,
    parts: Sequence[loader.Part],
    keys: Sequence[str],
    name: str,
) -> Embeddings:
    """Return the embedding of each key, in order, from the field `name` of a batch's parts."""
    decode = find_decoder(name)
    chosen = set(keys)
    embedding_of: dict[str, Any] = {}
    for part in parts:
        if any(name in shard.field_nbytes for shard in part.shards):
            for key, fields in read_part(store, part, [name]):
                if key in chosen and fields[name]:
                    embedding_of[key] = decode(fields[name], None)
    return stack_embeddings(embedding_of.get(key) for key in keys)
