"""Find and settle a batch's near-duplicates, within the batch and against the newest version."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import loader
from loader.dataset.writing.part_extension import read_part
from loader.modalities import decoder_for
from loader.storage import Store

from ..dedup.near_pairs import Embeddings, embeddings_of
from ..dedup.policy import KINDS, NearDuplicates
from ..dedup.published import near_published, published_samples
from ..dedup.settle import DuplicateOf, candidates_of, settle, table_of

CODE = "near_duplicate"
"""Code of an object whose samples are all near-duplicates."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCopies:
    """Near-duplicates among a batch's samples."""

    compared_with: str | None = None
    """Id of the version compared with; "" before the first version, None without a policy."""
    of: Mapping[str, DuplicateOf] = field(default_factory=dict)
    """Sample key -> its original."""
    supersede: Mapping[str, str] = field(default_factory=dict)
    """Key of a published sample -> why a new sample replaces it."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Name -> count from the comparison."""

    def columns(self, key: str) -> Row:
        """Return the sample's dup_of, dup_by and dup_distance_bits or dup_cosine; {} if it is no near-duplicate."""
        copy = self.of.get(key)
        if copy is None:
            return {}
        by_bits = copy.by != "embedding"
        near = {"dup_distance_bits": int(copy.distance)} if by_bits else {"dup_cosine": 1 - copy.distance}
        return {"dup_of": copy.of, "dup_by": copy.by, **near}


NONE = BatchCopies()


def copies_among(
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
    published samples that these samples replace. Cost: `dedup.published` and `dedup.hamming`.

    Raises: FieldMismatch; Corrupt.
    """
    place = {row["key"]: position for position, row in enumerate(landed)}
    rows = [row for row in samples if row["kind"] in KINDS]
    rows.sort(key=lambda row: (place.get(row["raw_key"], len(place)), row["key"]))
    table = table_of(rows)
    embeddings = None
    if policy.embedding:
        embeddings = _embeddings(root.store, parts, table["key"].to_list(), policy.embedding.field)
    new = candidates_of(table, [row["raw_sha256"] for row in rows], embeddings)
    published = published_samples(root, dataset, policy, but=[*(row["key"] for row in samples), *replaced])
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


def _embeddings(store: Store, parts: Sequence[loader.Part], keys: Sequence[str], name: str) -> Embeddings:
    decode, chosen = decoder_for(name), set(keys)
    embedding_of: dict[str, Any] = {}
    for part in parts:
        if any(name in shard.field_nbytes for shard in part.shards):
            for key, fields in read_part(store, part, [name]):
                if key in chosen and fields[name]:
                    embedding_of[key] = decode(fields[name], None)
    return embeddings_of(embedding_of.get(key) for key in keys)
