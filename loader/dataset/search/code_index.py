"""The indexed codes of a version's field: which samples have codes, and which are the most similar to a query."""

import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import Corrupt, FormatTooNew, MissingDependency, NotIndexed, ObjectNotFound
from ..shards.bitmap import Bools
from ..tables.parquet import Int64s
from .code_files import CodeFile, CodeFiles
from .codes import NUMPY_MOST_CODES, code_kind, import_faiss
from .how import How
from .segment_reads import coverage
from .segments import SegmentPart, VersionPart, version_parts

if TYPE_CHECKING:
    from ..versions.version import Version

MOST_CODES = 20_000_000
"""Most codes that a query scans: 2 s."""
_NO_SAMPLE = -1


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
        version: "Version",
        how: How,
        cache: str | os.PathLike[str] | None,
    ) -> None:
        """how: with ranges. cache: folder for local files; None is one of this process."""
        self._version = version
        self._files: list[
            tuple[CodeFile, Int64s]
        ] = []  # with int64 [rows]: live ordinal of each, or _NO_SAMPLE
        self.damaged: dict[str, str] = {}
        """Path of a segment that is left out -> what is wrong with it."""
        self.has_code = np.zeros(len(version), bool)
        """bool [len(version)]: True for live ordinals in a segment, also if their embedding has no direction."""
        local = CodeFiles(cache)
        parts = version_parts(version, how.field)
        while True:
            covered = coverage(
                version.store,
                how.folder,
                code_kind(how),
                parts,
                self.damaged,
            )
            self.damaged |= covered.damaged
            files = []
            n_damaged = len(self.damaged)
            for path in covered.segments:
                try:
                    files.append(local.open(version.store, path, how))
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
        selections = []
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
        ordinals_of_files = [np.zeros(0, np.int64)]
        scores_of_files = [np.zeros(0, np.float32)]
        for file, ordinals, selected in selections:
            rows, scores = file.scan(query, n_best, selected)
            ordinals_of_files.append(ordinals[rows])
            scores_of_files.append(scores)
        ordinals = np.concatenate(ordinals_of_files)
        scores = np.concatenate(scores_of_files)
        if len(ordinals) > n_best:
            best = np.argpartition(-scores, n_best)[:n_best]
            ordinals = ordinals[best]
        return CodeMatches(ordinals, n_scanned)

    def _check_size(self, n_codes: int) -> None:
        if n_codes > MOST_CODES:
            raise NotIndexed(
                f"a search in {self._version.name} would compare {n_codes:,} codes; a query compares at most "
                f"{MOST_CODES:,}: pass a where that leaves fewer samples"
            )
        if n_codes > NUMPY_MOST_CODES and import_faiss() is None:
            raise MissingDependency(
                f"{n_codes:,} codes are too many for numpy, which compares {NUMPY_MOST_CODES:,}: "
                "pip install 'penstock-data[search]', or pass a where that leaves fewer samples"
            )
