"""Shingles of a protected version, stored once.

    protected/<version id>.parquet      hash, quick, words, ordinal; a row per distinct shingle, ascending by hash

hash: int64, upper 63 bits of the BLAKE2b-64 of the words. quick: uint64, their quick hash (`shingles`). words: uint8.
ordinal: int64, number of the first sample that has the shingle. No row has a sample's key or text. A damaged table is
replaced, as its content follows from the version.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loader import Version
from loader.dataset.tables.parquet import parse_stored, table_bytes, table_facts
from loader.errors import AlreadyExists, Corrupt, InvalidPlan, ObjectNotFound, StoreError
from penstock.progress import progress
from penstock.words import word_blocks

from .sample_texts import SampleTexts, sample_texts, text_fields
from .shingles import (
    SHORTEST_INSIDE,
    WIDTH,
    Int64s,
    UInt64s,
    WordRun,
    quick_hashes,
    quick_word_hashes,
    shingle_hashes,
    word_run,
)

logger = logging.getLogger(__name__)

FOLDER = "protected/"
RULE = "1"
"""Version of the words and hashes: another release's tables are replaced."""
MOST_SHINGLES = 2**25
"""Most shingles of a protected version: about 2 GiB of memory while its table is made."""
_SCHEMA = pa.schema(
    [
        pa.field("hash", pa.int64(), nullable=False),
        pa.field("quick", pa.uint64(), nullable=False),
        pa.field("words", pa.uint8(), nullable=False),
        pa.field("ordinal", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProtectedTexts:
    """Shingles of a protected version."""

    name: str
    """Name of the version, such as "gsm8k@1"."""
    hashes: Int64s
    """int64 [n], ascending: hash of each shingle."""
    quick: UInt64s
    """uint64 [n]: quick hash of each shingle."""
    words: NDArray[np.uint8]
    """uint8 [n]: number of words of each shingle, 1 to 13."""
    ordinals: Int64s
    """int64 [n]: first sample that has each shingle."""

    @property
    def columns(self) -> list[np.ndarray]:
        """Columns of the stored table, in its order."""
        return [self.hashes, self.quick, self.words, self.ordinals]


def protected_path(version_id: str) -> str:
    return f"{FOLDER}{version_id}.parquet"


def protected_texts(version: Version) -> ProtectedTexts:
    """Return the shingles of all texts of a version. Reads its table, or its texts to make the table.

    Raises: InvalidPlan for a version with too many shingles; DecodeFailed; Corrupt; StoreError.
    """
    path = protected_path(version.id)
    try:
        data = version.store.get(path).data
    except ObjectNotFound:
        return _make(version, path, is_new=True)
    try:
        return _parse(version, path, data)
    except Corrupt as error:
        logger.warning("%s; it is made again", error)
    return _make(version, path, is_new=False)


def compute_texts(version: Version) -> ProtectedTexts:
    """Return the shingles of all texts of a version, from its texts. Stores them, or replaces others that are stored.

    Raises: as `protected_texts`.
    """
    path = protected_path(version.id)
    try:
        stored = version.store.get(path).data
    except ObjectNotFound:
        return _make(version, path, is_new=True)
    protected = _read_texts(version)
    if not _has_same_shingles(version, path, stored, protected):
        where = f"{version.store.url}/{path}"
        logger.warning("%s has other shingles than %s: it is replaced", where, version.name)
        data = _table_bytes(protected, path, len(version))
        _store(version, path, data, is_new=False)
    return protected


def _has_same_shingles(
    version: Version,
    path: str,
    data: bytes,
    protected: ProtectedTexts,
) -> bool:
    """Return whether a stored table has these shingles."""
    try:
        stored = _parse(version, path, data)
    except Corrupt:
        return False
    return _sha256(stored.columns) == _sha256(protected.columns)


def _make(version: Version, path: str, *, is_new: bool) -> ProtectedTexts:
    """Return the shingles of the version's texts, and store them. is_new: there is no table to replace."""
    protected = _read_texts(version)
    data = _table_bytes(protected, path, len(version))
    _store(version, path, data, is_new=is_new)
    return protected


def _read_texts(version: Version) -> ProtectedTexts:
    samples: Iterable[SampleTexts] = ()
    fields = text_fields(version)
    if fields:
        texts = sample_texts(version, fields)
        samples = progress(texts, f"reading {version.name}", total=len(version))
    return distinct_shingles(version.name, samples)


def _store(
    version: Version,
    path: str,
    data: bytes,
    *,
    is_new: bool,
) -> None:
    """Store a table, if the root can be written."""
    try:
        if is_new:
            version.store.put_if_absent(path, data)
        else:
            version.store.put(path, data)
    except AlreadyExists:  # another process was faster; both hold the same
        pass
    except StoreError as error:
        logger.warning("%s was not stored (%s); the next comparison reads the texts again", path, error)


def distinct_shingles(name: str, samples: Iterable[SampleTexts]) -> ProtectedTexts:
    """Return the shingles of samples in ascending order of their ordinals. name: of their version.

    Raises: InvalidPlan for too many.
    """
    shingles = _Shingles(name)
    for sample in samples:
        shingles.add(sample)
    return shingles.join()


class _Shingles:
    """Collects the shingles of a version's samples."""

    def __init__(self, name: str) -> None:
        self._name = name
        # Each begins with an empty array: a version may have no text.
        self._hashes = [np.zeros(0, np.int64)]
        self._quick = [np.zeros(0, np.uint64)]
        self._words = [np.zeros(0, np.uint8)]
        self._ordinals = [np.zeros(0, np.int64)]
        self._n = 0

    def add(self, sample: SampleTexts) -> None:
        """Add a sample's shingles: of 13 words, or the whole text if it is shorter. Samples come in order."""
        short: list[WordRun] = []
        has_long = False
        for text in sample.texts:
            run = self._add_long(text, sample.ordinal)
            if run.n_words >= SHORTEST_INSIDE:
                has_long = True
            if 0 < run.n_words < WIDTH:
                short.append(run)
        for run in short:
            # A short answer beside a question would match every text that is one.
            if run.n_words >= SHORTEST_INSIDE or not has_long:
                self._add(run, run.n_words, sample.ordinal)

    def _add_long(self, text: str, ordinal: int) -> WordRun:
        """Add the shingles of a text of at least 13 words; return its last block."""
        run = word_run([])
        last_words: list[str] = []  # of the block before: shingles reach into the next one
        for words in word_blocks(text):
            words = last_words + words
            run = word_run(words)
            last_words = words[1 - WIDTH :]
            if run.n_words >= WIDTH:
                self._add(run, WIDTH, ordinal)
        return run

    def _add(self, run: WordRun, width: int, ordinal: int) -> None:
        n_shingles = run.n_words - width + 1
        first_words = np.arange(n_shingles)
        hashes = shingle_hashes(run, width, first_words)
        self._n += n_shingles
        if self._n > MOST_SHINGLES:
            raise InvalidPlan(
                f"{self._name} has more than {MOST_SHINGLES:,} shingles of {WIDTH} words, up to its sample number "
                f"{ordinal}: protect a version with fewer samples, or several",
                what="shingles",
                where=self._name,
                given=ordinal,
                accepted=MOST_SHINGLES,
            )
        self._hashes.append(hashes)
        word_hashes = quick_word_hashes(run)
        quick_by_width = quick_hashes(word_hashes, [width])
        self._quick.append(quick_by_width[width])
        self._words.append(np.full(n_shingles, width, np.uint8))
        self._ordinals.append(np.full(n_shingles, ordinal))

    def join(self) -> ProtectedTexts:
        """Return each distinct shingle once, with the first sample that has it, ascending by hash."""
        hashes = np.concatenate(self._hashes)
        quick = np.concatenate(self._quick)
        words = np.concatenate(self._words)
        ordinals = np.concatenate(self._ordinals)
        # `np.unique` returns the first of equal hashes, which is of the first sample.
        distinct, first = np.unique(hashes, return_index=True)
        return ProtectedTexts(
            name=self._name,
            hashes=distinct,
            quick=quick[first],
            words=words[first],
            ordinals=ordinals[first],
        )


def _table_bytes(protected: ProtectedTexts, path: str, n_samples: int) -> bytes:
    table = pa.table(protected.columns, schema=_SCHEMA)
    facts = {
        "path": path,
        "rule": RULE,
        "samples": json.dumps(n_samples),
        "content_sha256": _sha256(protected.columns),
    }
    return table_bytes(table, "protected", facts=facts)


def _sha256(columns: Sequence[np.ndarray]) -> str:
    # Of the values, not of the file's bytes: those change with the version of Arrow that writes it.
    digest = hashlib.sha256()
    for column in columns:
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


def parse_protected(data: bytes, path: str, where: str) -> tuple[list[np.ndarray], dict[str, str]]:
    """Return the columns of a stored table, and its facts. Raises: Corrupt."""
    table = parse_stored(data, path, where)
    facts = table_facts(table)
    if not table.schema.equals(_SCHEMA, check_metadata=False):
        raise Corrupt(f"{where} has the columns {table.schema.names}; delete it to rebuild it")
    columns = [table[name].to_numpy() for name in _SCHEMA.names]
    if facts.get("content_sha256") != _sha256(columns):
        raise Corrupt(f"{where}: its content differs from its checksum; delete it to rebuild it")
    return columns, facts


def _parse(version: Version, path: str, data: bytes) -> ProtectedTexts:
    """Return the shingles in a stored table. Raises: Corrupt if it does not fit the version."""
    where = f"{version.store.url}/{path}"
    columns, facts = parse_protected(data, path, where)
    if facts.get("rule") != RULE or facts.get("samples") != json.dumps(len(version)):
        raise Corrupt(
            f"{where} is of {facts.get('samples')} samples, rule {facts.get('rule')}; {version.name} has "
            f"{len(version)}, rule {RULE}"
        )
    hashes, quick, words, ordinals = columns
    return ProtectedTexts(
        name=version.name,
        hashes=hashes,
        quick=quick,
        words=words,
        ordinals=ordinals,
    )
