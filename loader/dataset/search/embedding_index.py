"""The indexed codes of a version's field: which samples have codes, and which are the most similar to a query."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...cores import n_cores
from ...errors import Corrupt, FormatTooNew, MissingDependency, NotIndexed, ObjectNotFound
from ...storage.threads import DaemonPool
from ..shards.bitmap import Bools
from ..tables.parquet import Int64s
from .embedding_code_files import CodeFile, CodeFiles
from .embedding_codes import NUMPY_MOST_CODES, code_kind, code_weights, import_faiss
from .index_record import IndexRecord
from .segment_reads import coverage
from .segments import SegmentPart, VersionPart, version_parts
from .vectors import Floats

if TYPE_CHECKING:
    from ..reading.sample_places import VersionData

MOST_CODES = 20_000_000
"""Most codes that a query scans: 2 s."""
MOST_THREADS = 4
"""Most threads of a query: more wait for the memory."""
_NO_SAMPLE = -1

_Selection = tuple[CodeFile, Int64s, Bools]
"""A file, int64 [rows]: live ordinals of its rows, and bool [rows]: rows to scan."""


class CodeMatches(NamedTuple):
    """Samples whose codes are the most similar to a query."""

    ordinals: Int64s
    """int64 [n], in any order."""
    n_scanned: int
    """Codes that were compared."""


class CodeIndex:
    """Codes of a version's field. Opening reads a listing, footers, and segments without a local file."""

    def __init__(
        self,
        version: "VersionData",
        record: IndexRecord,
        cache: str | os.PathLike[str] | None,
    ) -> None:
        """record: with ranges. cache: folder for local files; None is one of this process."""
        self._version = version
        self._record = record
        self._files: list[
            tuple[CodeFile, Int64s]
        ] = []  # with int64 [rows]: live ordinal of each, or _NO_SAMPLE
        self.damaged: dict[str, str] = {}
        """Path of a segment that is left out -> what is wrong with it."""
        self.has_code = np.zeros(len(version), bool)
        """bool [len(version)]: True for live ordinals in a segment, also if their embedding has no direction."""
        local = CodeFiles(cache)
        parts = version_parts(version, record.field)
        while True:
            covered = coverage(
                version.store,
                record.folder,
                code_kind(record),
                parts,
                self.damaged,
            )
            self.damaged |= covered.damaged
            files = []
            n_damaged = len(self.damaged)
            for path in covered.segments:
                try:
                    files.append(local.open(version.store, path, record))
                except (Corrupt, FormatTooNew, ObjectNotFound) as error:
                    self.damaged[path] = str(error)
            if len(self.damaged) == n_damaged:
                break
        by_own = {part.own: part for part in parts}
        for file in files:
            self._add(file, by_own)

    def _add(self, file: CodeFile, parts: dict[SegmentPart, VersionPart]) -> None:
        """Find the live samples of a file's rows. parts: parts of the version that no file before had."""
        starts = file.starts
        ordinals = np.full(len(file.is_valid), _NO_SAMPLE, np.int64)
        positions = []
        rows = []
        places = []
        for number, own in enumerate(file.parts):
            part = parts.pop(own, None)
            if part is None:
                continue
            positions.append(np.full(own.n_rows, part.position, np.int64))
            rows.append(np.arange(own.n_rows))
            places.append(np.arange(starts[number], starts[number + 1]))
        if not places:
            return
        live = self._version.parts.live_ordinals(
            np.concatenate(positions),
            np.concatenate(rows),
        )
        ordinals[np.concatenate(places)] = live
        self.has_code[live[live >= 0]] = True
        ordinals[~file.is_valid] = _NO_SAMPLE
        self._files.append((file, ordinals))

    def best(
        self,
        query: np.ndarray,
        n_best: int,
        members: Bools,
    ) -> CodeMatches:
        """Return the `n_best` samples most similar to a query by their codes. members: bool [len(version)].

        Raises: NotIndexed above `MOST_CODES`; MissingDependency above what numpy scans.
        """
        # A scan of each file: a file without selected rows costs nothing.
        selections: list[_Selection] = []
        n_scanned = 0
        for file, ordinals in self._files:
            # As a position, _NO_SAMPLE is the last sample's.
            selected = members[ordinals]
            selected &= ordinals != _NO_SAMPLE
            n_selected = int(np.count_nonzero(selected))
            n_scanned += n_selected
            if n_selected:
                selections.append((file, ordinals, selected))
        self._check_size(n_scanned)
        ordinals, scores = self._scan(query, n_best, selections)
        if len(ordinals) > n_best:
            best = np.argpartition(-scores, n_best)[:n_best]
            ordinals = ordinals[best]
        return CodeMatches(ordinals, n_scanned)

    def _scan(
        self,
        query: np.ndarray,
        n_best: int,
        selections: Sequence[_Selection],
    ) -> tuple[Int64s, Floats]:
        """Return (ordinals, scores) of the `n_best` of each file, in any order."""

        weights = code_weights(query, self._record)

        def scan(selection: _Selection) -> tuple[Int64s, Floats]:
            file, ordinals, selected = selection
            rows, scores = file.scan(weights, n_best, selected)
            return ordinals[rows], scores

        # Neither faiss nor numpy holds the interpreter's lock while it scans.
        n_threads = min(n_cores(), MOST_THREADS, len(selections))
        if n_threads > 1:
            with DaemonPool(n_threads, "penstock-codes") as pool:
                matches = list(pool.map(scan, selections))
        else:
            matches = [scan(selection) for selection in selections]
        # The first array is empty: without a selection, there would be none to join.
        ordinals = [np.zeros(0, np.int64)]
        scores = [np.zeros(0, np.float32)]
        for selected_ordinals, selected_scores in matches:
            ordinals.append(selected_ordinals)
            scores.append(selected_scores)
        return np.concatenate(ordinals), np.concatenate(scores)

    def _check_size(self, n_codes: int) -> None:
        if n_codes > MOST_CODES:
            raise NotIndexed(
                f"a search in {self._version.name} would compare {n_codes:,} codes; a query compares at most "
                f"{MOST_CODES:,}: pass a where that leaves fewer samples",
                what="codes",
                where=self._version.name,
                given=n_codes,
                accepted=MOST_CODES,
            )
        if n_codes > NUMPY_MOST_CODES and import_faiss() is None:
            raise MissingDependency(
                f"{n_codes:,} codes are too many for numpy, which compares {NUMPY_MOST_CODES:,}: "
                "pip install 'penstock-data[search]', or pass a where that leaves fewer samples"
            )
