"""Local files with the codes of segments, which a scan maps into memory.

    <folder>/<how>-<16 hex>.faiss    faiss's head, then the codes; without faiss only the codes, as .codes
    <folder>/<how>-<16 hex>.json     parts, and rows without a code

The files are written from segments that passed their checks, under a temporary name first. faiss opens only files with
the head that it writes itself for the same record. Damage to a file changes ranks only; a file of another length is
written again. In a node cache they count against its limit, and loaders evict them before pages that they need.
"""

import os
import secrets
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import InvalidRuntime
from ...json_text import parse_json_object
from ...storage import Store
from ...storage.disk.scratch import HeldFolder, on_scratch
from ..log.entries import canonical
from ..shards.bitmap import Bools
from ..tables.parquet import Int64s, integers
from . import CODE_FOLDER
from .embedding_code_eviction import make_room
from .embedding_codes import GATHERED_SHARE, code_kind, faiss_head, faiss_scan, import_faiss, numpy_scan
from .index_record import IndexRecord
from .segment_reads import read_segment
from .segments import SegmentPart, StoredSegment, part_starts
from .vectors import Floats

_scratch_lock = threading.Lock()
_scratch: list[HeldFolder] = []


class CodeFile:
    """Codes of one segment in a local file, mapped."""

    def __init__(
        self,
        record: IndexRecord,
        parts: tuple[SegmentPart, ...],
        is_valid: Bools,
        path: str,
        head: bytes,
    ) -> None:
        """is_valid: bool [rows]. path: file with `head`, then the codes."""
        self.parts = parts
        """Parts, in the order of their rows."""
        self.is_valid = is_valid
        """bool [rows]: False for a row without a code."""
        self._faiss = import_faiss()
        self._index: Any = None
        self._codes = np.zeros((0, record.numbers), np.uint8)
        if not len(is_valid):
            return
        mapped = np.memmap(
            path,
            np.uint8,
            "r",
            len(head),
            (len(is_valid), record.numbers),
        )
        self._codes = np.asarray(
            mapped
        )  # each piece of a memmap is one, too, which takes longer than its numbers
        if self._faiss is not None:
            self._index = self._faiss.read_index(path, self._faiss.IO_FLAG_MMAP_IFC)

    @property
    def starts(self) -> Int64s:
        """int64 [parts + 1]: first row of each part, then the number of rows."""
        return part_starts(self.parts)

    def scan(
        self,
        weights: Floats,
        n_best: int,
        selected: Bools,
    ) -> tuple[Int64s, Floats]:
        """Return (rows, scores) of the codes most similar to a query, in any order. Thread-safe.

        weights: the query's `code_weights`. selected: bool [rows].
        """
        is_few = np.count_nonzero(selected) < GATHERED_SHARE * len(selected)
        if self._index is None or is_few:
            return numpy_scan(
                self._codes,
                weights,
                n_best,
                np.flatnonzero(selected),
            )
        return faiss_scan(
            self._faiss,
            self._index,
            weights,
            n_best,
            selected,
        )


class CodeFiles:
    """Code files in a folder on a local disk. Several processes may share it. folder: None is one of this process."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._is_shared = folder is not None
        if folder is None:
            folder = scratch_folder()
        else:
            folder = os.path.join(os.fspath(folder), CODE_FOLDER)
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise InvalidRuntime(
                    f"cache = {os.fspath(folder)!r}: {error}; pass a folder on a local disk that can be written"
                ) from error
        self._folder = Path(folder)

    def open(
        self,
        store: Store,
        path: str,
        record: IndexRecord,
    ) -> CodeFile:
        """Return the codes of a segment. Reads the segment if there is no file of it yet.

        Raises: Corrupt; FormatTooNew; ObjectNotFound; StoreError if the disk is full.
        """
        kind = code_kind(record)
        faiss = import_faiss()
        stem = _stem(path)
        rows_path = self._folder / f"{stem}.json"
        codes_path = self._folder / f"{stem}.codes"
        if faiss is not None:
            codes_path = self._folder / f"{stem}.faiss"
        rows = _read_rows(rows_path)
        if rows is not None:
            parts, is_valid = rows
            head = _head(faiss, record, len(is_valid))
            nbytes = len(head) + len(is_valid) * record.numbers
            # A loader may evict the file before it is mapped.
            with suppress(OSError, RuntimeError):
                if _has_head(codes_path, head, nbytes):
                    _touch(codes_path)
                    _touch(rows_path)
                    return CodeFile(
                        record,
                        parts,
                        is_valid,
                        str(codes_path),
                        head,
                    )

        segment = read_segment(store, path, kind)
        is_valid = _validity(segment)
        head = _head(faiss, record, len(is_valid))
        self._write(
            segment,
            is_valid,
            record,
            head,
            codes_path,
            rows_path,
        )
        return CodeFile(
            record,
            segment.parts,
            is_valid,
            str(codes_path),
            head,
        )

    def _write(
        self,
        segment: StoredSegment,
        is_valid: Bools,
        record: IndexRecord,
        head: bytes,
        codes_path: Path,
        rows_path: Path,
    ) -> None:
        """Write a segment's codes and rows. Raises: StoreError if the disk is full."""
        body = {
            "parts": [list(part) for part in segment.parts],
            "invalid": np.flatnonzero(~is_valid).tolist(),
        }
        pieces: list[Any] = [head]
        for chunk in segment.values["code"].chunks:
            first = chunk.offset * record.numbers
            pieces.append(chunk.buffers()[1][first : first + len(chunk) * record.numbers])
        if self._is_shared:
            # A scratch folder ends with its process, which has all of its files open.
            make_room(self._folder, len(head) + len(is_valid) * record.numbers)
        with on_scratch(
            str(self._folder),
            "while codes were written for a search",
            room_for="the codes",
            again="search again",
        ):
            _write(codes_path, pieces)
            _write(rows_path, [canonical(body)])


def derived_files(
    folder: str | os.PathLike[str],
    sources: Collection[str],
    segments: Collection[str] = (),
) -> list[str]:
    """Return the paths of code files in a cache folder with a part of these sources, or of these segments.

    Unreadable ones are among them.
    """
    stems = {_stem(path) for path in segments}
    paths: list[str] = []
    for rows_path in sorted(Path(folder, CODE_FOLDER).glob("*.json")):
        rows = _read_rows(rows_path)
        is_derived = rows is None or rows_path.stem in stems
        if rows is not None and not is_derived:
            is_derived = any(part.source in sources for part in rows[0])
        if is_derived:
            paths += [str(path) for path in sorted(rows_path.parent.glob(f"{rows_path.stem}.*"))]
    return paths


def _stem(path: str) -> str:
    """Return the name without its ending that the files of a segment have."""
    _, how_name, name = path.split("/")
    digest = name.partition(".")[0].rpartition("-")[2]
    return f"{how_name}-{digest}"


def scratch_folder() -> Path:
    """Return this process's folder for codes and texts, which is removed at its end."""
    with _scratch_lock:
        if not _scratch:
            with on_scratch(
                None,
                "while codes were written for a search",
                room_for="the codes",
                again="search again",
            ):
                _scratch.append(HeldFolder("search"))
        return _scratch[0].path


def _head(faiss: Any, record: IndexRecord, n_codes: int) -> bytes:
    if faiss is None:
        return b""
    return faiss_head(faiss, record, n_codes)


def _has_head(path: Path, head: bytes, nbytes: int) -> bool:
    """Return whether a file begins with these bytes and has this size."""
    try:
        with open(path, "rb") as file:
            is_same = file.read(len(head)) == head
            return is_same and os.fstat(file.fileno()).st_size == nbytes
    except OSError:
        return False


def _touch(path: Path) -> None:
    """Set the time of use: an eviction deletes the file that was used the longest ago. Mapped reads do not set it."""
    status = path.stat()
    os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))


def _read_rows(path: Path) -> tuple[tuple[SegmentPart, ...], Bools] | None:
    """Return (parts, bool [rows]: rows with a code); None without a readable file."""
    try:
        body = parse_json_object(path.read_bytes())
        parts = tuple(SegmentPart(*part) for part in body["parts"])
        n_rows = sum(part.n_rows for part in parts)
        is_valid = np.ones(n_rows, bool)
        is_valid[np.array(body["invalid"], np.int64)] = False
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return parts, is_valid


def _validity(segment: StoredSegment) -> Bools:
    is_valid = segment.values["code"].is_valid()
    as_bytes: Bools = integers(is_valid.cast(pa.int8())).astype(bool)
    return as_bytes


def _write(path: Path, pieces: list[Any]) -> None:
    """Write a file under a temporary name, then rename it: other processes never see a part of it."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "xb") as file:
            for piece in pieces:
                file.write(piece)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
