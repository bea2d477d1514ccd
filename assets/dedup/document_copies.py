"""Find copies of documents in a batch and in the newest version."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

import loader
from loader.dataset.versions.samples_table import scan_samples
from loader.dataset.writing.part_extension import read_part
from loader.modalities import find_decoder
from loader.storage import Store
from penstock.card.classes import fields_modality

from ..featurizers.texts.minhash import N_VALUES, NO_WORD
from .band_index import DOCUMENTS_AT_ONCE, check_signature, documents_with_bands, stored_signatures
from .bands import UInt32s
from .hamming import Int64s
from .policy import TEXT, NearDuplicates, TextMatch
from .settle import DuplicateOf
from .settle_documents import (
    PublishedNear,
    SignedDocuments,
    least_equal_values,
    no_published,
    settle_documents,
    sign_documents,
)

PAIRS_AT_ONCE = 2**16
"""Pairs compared at once: 60 MiB of signatures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentCopies:
    """Copies among a batch's documents."""

    of: Mapping[str, DuplicateOf] = field(default_factory=dict)
    """Sample key -> its original."""
    n_compared: int = 0
    """Published documents that were compared."""
    n_unhashed: int = 0
    """Published documents without a signature."""


def document_copies(
    root: loader.Root,
    newest: "loader.Version | None",
    policy: NearDuplicates,
    match: TextMatch,
    keys: Sequence[str],
    parts: Sequence[loader.Part],
    but: Collection[str],
) -> DocumentCopies:
    """Find the copies among documents.

    keys: str [n], in landing order. parts: the batch's. but: keys of published documents to leave out. Memory: 1.1
    kB per document. Raises: FieldMismatch; Corrupt.
    """
    signatures = signatures_of_parts(
        root.store,
        parts,
        keys,
        match.field,
    )
    documents = sign_documents(keys, signatures)
    if newest is None:
        return DocumentCopies(of=settle_documents(documents, match.min_similarity))
    n_compared, n_unhashed = _document_counts(newest, match.field)
    published = no_published()
    if n_compared and keys:
        published = near_published(
            documents,
            newest,
            match,
            but,
        )
        # A policy that drops copies publishes none.
        if policy.action == "mark":
            published = without_marked(published, newest)
    return DocumentCopies(
        of=settle_documents(documents, match.min_similarity, published),
        n_compared=n_compared,
        n_unhashed=n_unhashed,
    )


def signatures_of_parts(
    store: Store,
    parts: Sequence[loader.Part],
    keys: Sequence[str],
    field_name: str,
) -> UInt32s:
    """Return uint32 [n, 112]: the signature of each key; filled with `NO_WORD` without one. Raises: FieldMismatch."""
    decode = find_decoder(field_name)
    row_of_key = {key: row for row, key in enumerate(keys)}
    signatures = np.full((len(keys), N_VALUES), NO_WORD, np.uint32)
    for part in parts:
        if not any(field_name in shard.field_nbytes for shard in part.shards):
            continue
        for key, fields in read_part(store, part, [field_name]):
            row = row_of_key.get(key)
            if row is not None and fields[field_name]:
                signatures[row] = check_signature(decode(fields[field_name], None), field_name)
    return signatures


def near_published(
    documents: SignedDocuments,
    version: "loader.Version",
    match: TextMatch,
    but: Collection[str],
) -> PublishedNear:
    """Return the near pairs of the batch's distinct documents and published ones. but: published keys to leave out."""
    rows = documents.distinct
    number, ordinals = documents_with_bands(version, match.field, documents.hashes[rows])
    document = rows[number]
    n_equal = _equal_to_published(
        documents,
        version,
        match.field,
        document,
        ordinals,
    )
    is_near = n_equal >= least_equal_values(match.min_similarity)  # bool [pairs]
    # Keys are read only for documents of near pairs.
    near_ordinals = np.unique(ordinals[is_near])
    names = dict(zip(near_ordinals.tolist(), version.keys(near_ordinals), strict=True))
    left_out = [ordinal for ordinal, key in names.items() if key in but]
    is_near &= ~np.isin(ordinals, left_out)
    return PublishedNear(
        document=document[is_near],
        ordinal=ordinals[is_near],
        n_equal=n_equal[is_near],
        keys=names,
    )


def _equal_to_published(
    documents: SignedDocuments,
    version: "loader.Version",
    field_name: str,
    document: Int64s,
    ordinals: Int64s,
) -> Int64s:
    """Return int64 [m]: equal values of each pair. ordinals: int64 [m], ascending."""
    n_equal = np.zeros(len(ordinals), np.int64)
    distinct = np.unique(ordinals)
    for first in range(0, len(distinct), DOCUMENTS_AT_ONCE):
        block = distinct[first : first + DOCUMENTS_AT_ONCE]
        signatures = stored_signatures(version, field_name, block)
        # Pairs are by ordinal, so that a block's are one stretch.
        start = int(np.searchsorted(ordinals, block[0], side="left"))
        end = int(np.searchsorted(ordinals, block[-1], side="right"))
        for low in range(start, end, PAIRS_AT_ONCE):
            span = slice(low, min(low + PAIRS_AT_ONCE, end))
            # uint32 [pairs, 112].
            stored = signatures[np.searchsorted(block, ordinals[span])]
            is_equal = documents.signatures[document[span]] == stored
            n_equal[span] = np.count_nonzero(is_equal, axis=1)
    return n_equal


def without_marked(
    published: PublishedNear,
    version: "loader.Version",
) -> PublishedNear:
    """Return the pairs whose published document is not a marked copy: a document is a copy only of one that stays."""
    import polars as pl

    if "dup_of" not in version.manifest["columns"]:
        return published
    table = scan_samples(version, ["dup_of"]).filter(pl.col("dup_of").is_not_null()).collect()
    is_marked = np.isin(published.ordinal, table["ordinal"].to_numpy())
    return PublishedNear(
        document=published.document[~is_marked],
        ordinal=published.ordinal[~is_marked],
        n_equal=published.n_equal[~is_marked],
        keys=published.keys,
    )


def _document_counts(
    version: "loader.Version",
    field_name: str,
) -> tuple[int, int]:
    """Return (samples of the version with the field, text samples without it), from the facts of its parts."""
    parts = version.parts
    fields_of_group = {
        name: frozenset(group["field_nbytes"]) for name, group in version.manifest["groups"].items()
    }
    groups = sorted(fields_of_group)
    has_groups = np.stack([parts.has_group(name) for name in groups], axis=1)  # bool [parts, groups]
    # bool [layouts, groups], int64 [parts]: most parts have equal groups, so there are few layouts.
    layouts, layout_of_part = np.unique(has_groups, axis=0, return_inverse=True)
    # int64 [layouts]: samples of any kind.
    n_samples = np.bincount(layout_of_part.ravel(), weights=parts.n_live, minlength=len(layouts)).astype(
        np.int64
    )
    n_with_field = 0
    n_texts_without = 0
    for layout, n in zip(layouts, n_samples.tolist(), strict=True):
        fields: set[str] = set()
        for name, is_there in zip(groups, layout.tolist(), strict=True):
            if is_there:
                fields |= fields_of_group[name]
        if field_name in fields:
            n_with_field += n
        elif fields_modality(fields) == TEXT:
            n_texts_without += n
    return n_with_field, n_texts_without
