"""Find published documents that share a band with a batch's, by segments that cover the newest version.

Parts without a segment get one first, from their signatures: 168 bytes per document. So a batch indexes what the batch
before it published, and nothing is written at publication. Segments of similar size are merged: a document is written a
few times, and a version of 1e8 documents has about ten segments. A look-up reads the row groups of its hashes.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.search.segments import SegmentPart, VersionPart
from loader.errors import Corrupt, FieldMismatch, ObjectNotFound
from loader.modalities import find_decoder

from ..featurizers.texts.minhash import N_BANDS, N_VALUES, NO_WORD
from .band_coverage import Coverage, coverage, covers, live_ordinals
from .band_segments import (
    RECORD,
    Bands,
    BandSegment,
    IndexedPart,
    find_hash_bands,
    joined,
    list_segments,
    no_bands,
    put_segment,
    read_band_range,
    sort_bands,
)
from .bands import Bools, UInt32s, band_hashes, has_words
from .hamming import Int64s, UInt64s

logger = logging.getLogger(__name__)

NEW_DOCUMENTS = 2**17
"""Documents from which a new segment is written: 22 MiB of bands, and as much three times while they are sorted."""
MERGE_AT = 4
"""Segments of similar size that are merged."""
MAX_DOCUMENTS = 2**32
"""Documents that a segment can number."""
DOCUMENTS_AT_ONCE = 4096
"""Documents whose signatures are read at once."""
ATTEMPTS = 5
"""Looks for segments, of which another run may have merged or deleted some meanwhile."""


def documents_with_bands(
    version: "loader.Version",
    field: str,
    hashes: UInt64s,
) -> tuple[Int64s, Int64s]:
    """Return distinct pairs (row of `hashes`, ordinal) that share a band, by ordinal; indexes the version first.

    hashes: uint64 [n, 14]. Raises: FieldMismatch for another signature; Corrupt; StoreError.
    """
    band_row = np.repeat(np.arange(len(hashes)), hashes.shape[1])  # [14 n]: row of each band
    flat = hashes.ravel()
    order = np.argsort(flat, kind="stable")  # int64 [14 n]: bands by hash
    for attempt in range(ATTEMPTS):
        try:
            covered = index_version(version, field)
            return _pairs(
                version,
                covered,
                flat[order],
                band_row[order],
            )
        except (Corrupt, ObjectNotFound) as error:
            if attempt + 1 == ATTEMPTS:
                raise
            logger.warning("bands of %s are read again: %s", version.name, error)
            _delete_damaged(version, error)
    raise AssertionError("the last attempt returns or raises")


def _pairs(
    version: "loader.Version",
    covered: Coverage,
    hashes: UInt64s,
    band_row: Int64s,
) -> tuple[Int64s, Int64s]:
    """Return the pairs as `documents_with_bands`. hashes: uint64 [14 n], ascending. band_row: int64 [14 n]."""
    n_ordinals = max(len(version), 1)
    codes = [np.zeros(0, np.int64)]
    for segment in covered.segments:
        for bands in find_hash_bands(version.store, segment, hashes):
            # int64 [stored bands]: first searched band with an equal hash.
            first = np.searchsorted(hashes, bands.hashes, side="left")
            end = np.searchsorted(hashes, bands.hashes, side="right")
            hit = np.flatnonzero(end > first)  # stored bands with an equal hash
            ordinals = live_ordinals(
                version,
                covered,
                segment,
                bands.documents[hit],
            )
            is_live = ordinals >= 0
            hit = hit[is_live]
            count = end[hit] - first[hit]
            # [pairs]: number of each searched band with the hash of a stored one
            offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            searched = np.repeat(first[hit], count) + offset
            # int64 [pairs]: row and ordinal as one number, for `unique`.
            code = band_row[searched] * n_ordinals + np.repeat(ordinals[is_live], count)
            codes.append(np.unique(code))
    row, ordinal = np.divmod(np.unique(np.concatenate(codes)), n_ordinals)
    order = np.lexsort((row, ordinal))
    return row[order], ordinal[order]


def index_version(
    version: "loader.Version",
    field: str,
) -> Coverage:
    """Return segments that cover the version; adds missing ones, and merges small ones.

    Raises: FieldMismatch for a signature that is none; Corrupt; StoreError.
    """
    covered = coverage(version, field)
    new = (_new_segment(version, field, parts) for parts in _blocks(covered.missing))
    segments = [*covered.segments, *new]
    superseded = list(covered.superseded)
    small = _mergeable(segments)
    if small:
        merged = _merge(version, covered, small)
        segments = [segment for segment in segments if segment not in small]
        segments.append(merged)
        superseded += [segment.folder for segment in small if segment.folder != merged.folder]
    _delete(version, superseded)
    return Coverage(
        segments=tuple(segments),
        parts=covered.parts,
        missing=(),
        superseded=(),
    )


def _blocks(parts: Sequence[VersionPart]) -> Iterator[list[VersionPart]]:
    """Yield parts with about `NEW_DOCUMENTS` documents together."""
    block: list[VersionPart] = []
    n_documents = 0
    for part in parts:
        block.append(part)
        n_documents += part.own.n_rows
        if n_documents >= NEW_DOCUMENTS:
            yield block
            block = []
            n_documents = 0
    if block:
        yield block


def _new_segment(
    version: "loader.Version",
    field: str,
    parts: Sequence[VersionPart],
) -> BandSegment:
    """Store the bands of parts' live documents, from their signatures."""
    hashes: list[UInt64s] = []
    documents: list[Int64s] = []
    indexed: list[IndexedPart] = []
    start = 0
    for part in parts:
        members = version.parts.live_members(part.position)
        # int64 [live documents]: rows of the part.
        rows = np.flatnonzero(members)
        first_ordinal = int(version.parts.first_ordinal[part.position])
        ordinals = first_ordinal + np.arange(len(rows))
        for first in range(0, len(rows), DOCUMENTS_AT_ONCE):
            span = slice(first, first + DOCUMENTS_AT_ONCE)
            signatures = stored_signatures(version, field, ordinals[span])
            known = np.flatnonzero(has_words(signatures))
            hashes.append(band_hashes(signatures[known]))
            documents.append(start + rows[span][known])
        indexed.append(IndexedPart(own=part.own, excluded=tuple(np.flatnonzero(~members).tolist())))
        start += part.own.n_rows
    # `concatenate` needs an array, also without documents.
    flat = np.concatenate([np.zeros(0, np.uint64), *(one.ravel() for one in hashes)])
    owners = np.concatenate([np.zeros(0, np.int64), *documents]).astype(np.uint32)
    bands = sort_bands(flat, np.repeat(owners, N_BANDS))

    def read_file_bands(
        first_byte: int,
        end_byte: int,
    ) -> Bands:
        highest_byte = bands.hashes >> np.uint64(56)
        ends = np.searchsorted(highest_byte, [first_byte, end_byte])
        return bands.take(slice(int(ends[0]), int(ends[1])))

    return put_segment(
        version.store,
        version.dataset,
        indexed,
        len(bands),
        read_file_bands,
    )


def stored_signatures(
    version: "loader.Version",
    field: str,
    ordinals: Int64s,
) -> UInt32s:
    """Return uint32 [n, 112]: signatures of documents. Raises: FieldMismatch.

    A document without a stored signature gets one filled with `NO_WORD`, like a document without words.
    """
    decode = find_decoder(field)
    signatures = np.full((len(ordinals), N_VALUES), NO_WORD, np.uint32)
    samples = read_fields(version.shard_store, version.address(ordinals, [field]))
    for number, sample in enumerate(samples):
        if sample[field]:
            signatures[number] = check_signature(decode(sample[field], None), field)
    return signatures


def check_signature(
    signature: Any,
    field: str,
) -> UInt32s:
    """Return a decoded signature. Raises: FieldMismatch."""
    if signature.dtype != np.uint32 or signature.shape != (N_VALUES,):
        raise FieldMismatch(
            f"field {field!r} holds {signature.dtype} {list(signature.shape)}; documents are compared by signatures of "
            f"the featurizer minhash, uint32 [{N_VALUES}]. Name its field in TextMatch(field=)",
            what=field,
            given=f"{signature.dtype} {list(signature.shape)}",
            accepted=f"uint32 [{N_VALUES}]",
        )
    checked: UInt32s = signature
    return checked


def _mergeable(segments: Sequence[BandSegment]) -> list[BandSegment]:
    """Return the two smallest segments, and each with at most as many bands as all smaller ones together.

    Returns [] for fewer than `MERGE_AT`.
    """
    ascending = sorted(segments, key=lambda segment: (segment.n_bands, segment.folder))
    chosen: list[BandSegment] = []
    n_bands = 0
    n_documents = 0
    for segment in ascending:
        n_documents += int(segment.starts[-1])
        # The two smallest count as similar: a second segment that is larger than the first would end every search.
        is_similar = len(chosen) < 2 or segment.n_bands <= n_bands
        if not is_similar or n_documents > MAX_DOCUMENTS:
            break
        chosen.append(segment)
        n_bands += segment.n_bands
    if len(chosen) < MERGE_AT:
        return []
    return chosen


def _merge(
    version: "loader.Version",
    covered: Coverage,
    segments: Sequence[BandSegment],
) -> BandSegment:
    """Store one segment with the live documents of all; each part from the first segment that has it."""
    indexed: dict[SegmentPart, IndexedPart] = {}
    start = 0
    # Of each segment: int64 [parts], first document of its parts in the new one, or -1.
    new_starts: list[Int64s] = []
    for segment in segments:
        own_starts = np.full(len(segment.parts), -1, np.int64)
        for number, part in enumerate(segment.parts):
            known = covered.parts.get(part.own)
            # Left out: a part that the version lacks, that an earlier segment has, or of which rows are missing here.
            if known is None or part.own in indexed or not covers(version, covered.parts, part):
                continue
            members = version.parts.live_members(known.position)
            excluded = set(part.excluded).union(np.flatnonzero(~members).tolist())
            indexed[part.own] = IndexedPart(own=part.own, excluded=tuple(sorted(excluded)))
            own_starts[number] = start
            start += part.own.n_rows
        new_starts.append(own_starts)

    def read_file_bands(
        first_byte: int,
        end_byte: int,
    ) -> Bands:
        """Return the live bands of one file of the merged segment, from all segments."""
        bands = [no_bands()]
        for segment, own_starts in zip(segments, new_starts, strict=True):
            stored = read_band_range(
                version.store,
                segment,
                first_byte,
                end_byte,
            )
            bands.append(
                _renumber(
                    version,
                    covered,
                    segment,
                    own_starts,
                    stored,
                )
            )
        merged = joined(bands)
        return sort_bands(merged.hashes, merged.documents)

    # An upper bound, which only decides the number of files: bands of removed documents are left out.
    n_bands = sum(segment.n_bands for segment in segments)
    return put_segment(
        version.store,
        version.dataset,
        indexed.values(),
        n_bands,
        read_file_bands,
    )


def _renumber(
    version: "loader.Version",
    covered: Coverage,
    segment: BandSegment,
    own_starts: Int64s,
    bands: Bands,
) -> Bands:
    """Return the bands of live documents, with their numbers in the merged segment.

    own_starts: int64 [parts of `segment`]. First document of each part in the merged segment, -1 if it has the part
    from another one.
    bands: of `segment`, with its numbers.
    """
    starts = segment.starts
    # int64 [bands]: part of each band's document.
    number = np.searchsorted(starts, bands.documents, side="right") - 1
    is_live = (
        live_ordinals(
            version,
            covered,
            segment,
            bands.documents,
        )
        >= 0
    )
    stays: Bools = is_live & (own_starts[number] >= 0)
    documents = own_starts[number] + bands.documents - starts[number]
    return Bands(hashes=bands.hashes[stays], documents=documents[stays].astype(np.uint32))


def _delete(
    version: "loader.Version",
    folders: Sequence[str],
) -> None:
    """Delete segments, each record first: a segment with a record is whole."""
    for folder in folders:
        version.store.delete_many([folder + RECORD])
        paths = [info.key for info in version.store.list(folder)]
        version.store.delete_many(paths)


def _delete_damaged(
    version: "loader.Version",
    error: Exception,
) -> None:
    """Delete the segment that an error names, which the next look makes again."""
    named = [folder for folder in list_segments(version.store, version.dataset) if folder in str(error)]
    _delete(version, named)
