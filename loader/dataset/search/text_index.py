"""The words of a version's text fields: which samples match, from segments of texts, or from the texts themselves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...errors import Corrupt, FormatTooNew, NotIndexed, ObjectNotFound
from ..shards.bitmap import Bools
from ..tables.parquet import Int64s, take_rows
from .index_record import TEXTS, field_index_record
from .segment_reads import coverage, read_segment
from .segments import SegmentPart, StoredSegment, VersionPart, part_starts, version_parts
from .text_files import map_texts
from .text_reads import TextReader, text_kind
from .words import WordTerm, fold_texts, in_order, term_matches

if TYPE_CHECKING:
    from ..reading.sample_places import VersionData

MOST_READ = 100_000
"""Most texts that a query reads without an index."""
_TEXTS_PER_S = 100_000
"""Texts that one core indexes in a second."""
_NO_SAMPLE = -1


class TextIndex:
    """Folded texts of one field of a version, mapped from local files. Not thread-safe.

    Opening reads the segments; samples without one are read when a query first needs them.
    """

    def __init__(self, version: "VersionData", field: str) -> None:
        self._version = version
        self.field = field
        """Text field."""
        self._texts: list[
            tuple[pa.ChunkedArray, Int64s]
        ] = []  # with int64 [texts]: live ordinal, or _NO_SAMPLE
        self._is_read = np.zeros(len(version), bool)
        self.damaged: dict[str, str] = {}
        """Path of a segment that is left out -> what is wrong with it."""
        group = version.group_of(field)
        parts = version.parts
        self._has_field = parts.has_live_group(group)  # bool [len(version)]
        self._open()

    def _open(self) -> None:
        version = self._version
        record = field_index_record(version, self.field, TEXTS)
        kind = text_kind(record)
        parts = version_parts(version, self.field)
        while True:
            covered = coverage(
                version.store,
                record.folder,
                kind,
                parts,
                self.damaged,
            )
            self.damaged |= covered.damaged
            folded = []
            n_damaged = len(self.damaged)
            for path in covered.segments:
                try:
                    segment = read_segment(version.store, path, kind)
                except (Corrupt, FormatTooNew, ObjectNotFound) as error:
                    self.damaged[path] = str(error)
                    continue
                # One at a time: together they would take the memory of all texts.
                folded.append((segment.parts, _fold_segment(segment)))
            if len(self.damaged) == n_damaged:
                break
        by_own = {part.own: part for part in parts}
        for segment_parts, texts in folded:
            self._add(segment_parts, texts, by_own)

    def _add(
        self,
        segment_parts: tuple[SegmentPart, ...],
        texts: pa.ChunkedArray,
        parts: dict[SegmentPart, VersionPart],
    ) -> None:
        """Add a segment's folded texts. parts: parts of the version that no segment before had."""
        ordinals = np.full(
            len(texts),
            _NO_SAMPLE,
            np.int64,
        )
        starts = part_starts(segment_parts)
        for number, own in enumerate(segment_parts):
            part = parts.pop(own, None)
            if part is None:
                continue
            positions = np.full(
                own.n_rows,
                part.position,
                np.int64,
            )
            live = self._version.parts.live_ordinals(positions, np.arange(own.n_rows))
            ordinals[starts[number] : starts[number + 1]] = live
        self._is_read[ordinals[ordinals >= 0]] = True
        self._texts.append((texts, ordinals))

    def read(self, members: Bools) -> None:
        """Read the texts of members, bool [len(version)], that are in no segment. Raises: NotIndexed."""
        missing = np.flatnonzero(members & self._has_field & ~self._is_read)
        if len(missing) > MOST_READ:
            raise self._not_indexed(len(missing))
        if not len(missing):
            return
        reader = TextReader(self._version, self.field)
        try:
            texts = reader.samples(missing)
        finally:
            reader.close()
        folded = fold_texts(pa.concat_arrays(texts.chunks))
        self._texts.append((map_texts(folded), missing))
        self._is_read[missing] = True

    def matches(self, term: WordTerm, members: Bools) -> Bools:
        """Return bool [len(version)]: members whose text has a term's words."""
        has_words = np.zeros(len(members), bool)
        for texts, ordinals in self._texts:
            start = 0
            # Chunk by chunk: the texts of all members would take as much memory again.
            for chunk in texts.chunks:
                own = ordinals[start : start + len(chunk)]
                start += len(chunk)
                is_member = (own != _NO_SAMPLE) & members[own]
                rows = np.flatnonzero(is_member)
                if not len(rows):
                    continue
                searched = pa.chunked_array([chunk])
                if len(rows) < len(chunk):
                    searched = take_rows(searched, rows)
                is_match = term_matches(searched, term)
                has_words[own[rows[is_match]]] = True
        return has_words

    def _not_indexed(self, n: int) -> NotIndexed:
        name = self._version.name
        nbytes = 0
        for body in self._version.manifest["groups"].values():
            nbytes += body["field_nbytes"].get(self.field, 0)
        seconds = max(1, round(n / _TEXTS_PER_S))
        return NotIndexed(
            f"{name} has {n:,} samples whose {self.field!r} is not indexed; a query reads at most {MOST_READ:,} texts "
            f"without an index. Run penstock index {name} --field {self.field} (about {seconds:,} s and at most "
            f"{nbytes:,} bytes), or pass a where that leaves fewer samples",
            what=self.field,
            where=name,
            given=n,
            accepted=MOST_READ,
        )


def _fold_segment(segment: StoredSegment) -> pa.ChunkedArray:
    texts = segment.values["text"].combine_chunks()
    if isinstance(texts, pa.ChunkedArray):
        texts = pa.concat_arrays(texts.chunks)
    return map_texts(fold_texts(texts))


def word_members(
    indexes: Sequence[TextIndex],
    terms: Sequence[WordTerm],
    members: Bools,
) -> Bools:
    """Return bool [n]: the members that match all terms. One of its texts must have a word.

    Raises: NotIndexed.
    """
    for index in indexes:
        index.read(members)
    matching = members.copy()
    for term in in_order(terms):
        has_words = np.zeros(len(members), bool)
        for index in indexes:
            has_words |= index.matches(term, matching)
        matching &= has_words != term.is_excluded
    return matching
