"""The index of published bands finds what comparing all finds, whatever was published, excluded or damaged."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from assets.dedup import band_coverage, band_index, band_segments
from assets.dedup.band_index import documents_with_bands, index_version
from assets.dedup.band_segments import RECORD, list_segments, parse_segment, read_segment
from assets.dedup.bands import band_hashes
from assets.featurizers.texts.minhash import NO_WORD
from loader.errors import Corrupt, FieldMismatch
from tests.refusals import refusal

FIELD = "minhash.npy"


class Corpus:
    """A dataset of signatures of few families, published in parts."""

    def __init__(self, root: loader.Root) -> None:
        self.root = root
        self.draw = np.random.default_rng(3)
        self.families = self.draw.integers(0, 2**32, (5, 112), np.uint32)
        self.signature: dict[str, np.ndarray] = {}

    def signatures(self, n: int) -> np.ndarray:
        """uint32 [n, 112]: most share some bands with others, one in ten has no word."""
        out = self.families[self.draw.integers(0, len(self.families), n)]
        differs = np.repeat(self.draw.random((n, 14)) < 0.8, 8, axis=1)
        out[differs] = self.draw.integers(0, 2**32, int(differs.sum()), np.uint32)
        out[self.draw.random(n) < 0.1] = NO_WORD
        return out

    def publish(self, n: int) -> loader.Version:
        number = len(self.signature)
        with self.root.write("texts") as writer:
            for place, row in enumerate(self.signatures(n)):
                key = f"t{number + place:05d}"
                writer.add(key, {"txt": key, FIELD: row})
                self.signature[key] = row
        return self.root.open("texts@latest")

    def check(self, version: loader.Version, n: int = 20) -> None:
        """The pairs of new documents are those of comparing every band with every other."""
        queries = band_hashes(self.signatures(n))
        keys = [row["__key__"] for row in version]
        stored = np.stack([self.signature[key] for key in keys])
        has_word = (stored != NO_WORD).any(axis=1)
        hashes = band_hashes(stored)
        expected = set()
        for row, query in enumerate(queries):
            shares = (hashes == query).any(axis=1) & has_word
            expected |= {(row, ordinal) for ordinal in np.flatnonzero(shares).tolist()}
        rows, ordinals = documents_with_bands(version, FIELD, queries)
        pairs = list(zip(rows.tolist(), ordinals.tolist(), strict=True))
        assert len(pairs) == len(set(pairs))
        assert set(pairs) == expected
        assert ordinals.tolist() == sorted(ordinals.tolist())

    def segments(self) -> list[band_segments.BandSegment]:
        folders = list_segments(self.root.store, "texts")
        return [read_segment(self.root.store, folder) for folder in folders]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    root = loader.Root(tmp_path / "root")
    root.create()
    return Corpus(root)


def test_index_finds_what_every_comparison_finds(corpus: Corpus) -> None:
    """After each of several versions, with samples excluded between them; parts are indexed once."""
    for number in range(9):
        version = corpus.publish(30 + number)
        if number % 3 == 2:
            excluded = [row["__key__"] for row in version[:: 7 + number]]
            version = corpus.root.exclude("texts", excluded, reason="spam")
        corpus.check(version)
        sources = [part.own.source for segment in corpus.segments() for part in segment.parts]
        assert len(sources) == len(set(sources)) == number + 1
    assert len(corpus.segments()) < 6  # merged


def test_index_is_written_once(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    version = corpus.publish(50)
    index_version(version, FIELD)
    before = {info.key: info.etag for info in corpus.root.store.list("tables/")}

    def read(*_: object) -> None:
        raise AssertionError("signatures are read again")

    monkeypatch.setattr(band_index, "stored_signatures", read)
    assert len(index_version(version, FIELD).segments) == 1
    assert {info.key: info.etag for info in corpus.root.store.list("tables/")} == before


def test_lookup_reads_only_row_groups_of_its_hashes(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(band_segments, "ROW_GROUP_BANDS", 64)
    monkeypatch.setattr(band_segments, "FILE_BANDS", 1024)
    version = corpus.publish(400)
    corpus.check(version)
    (segment,) = corpus.segments()
    assert len(segment.files) == 8
    assert [file.path[-10:] for file in segment.files][:3] == ["00.parquet", "20.parquet", "40.parquet"]
    one = np.sort(band_hashes(corpus.signature["t00001"][None])[0][:1])
    read = [len(bands) for bands in band_segments.find_hash_bands(version.store, segment, one)]
    assert 1 <= len(read) <= 2
    assert max(read) <= 64


def test_files_are_twelve_bytes_per_band(corpus: Corpus) -> None:
    version = corpus.publish(3_000)
    index_version(version, FIELD)
    (segment,) = corpus.segments()
    assert segment.n_bands > 3_000 * 12
    assert sum(file.nbytes for file in segment.files) < 12.5 * segment.n_bands


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["00.parquet", RECORD])
@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink, lambda path: path.write_bytes(b"{}")])
def test_damaged_segment_is_made_again(
    corpus: Corpus, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    version = corpus.publish(40)
    corpus.check(version)
    (folder,) = list_segments(corpus.root.store, "texts")
    damage(tmp_path / "root" / folder / name)
    corpus.check(version)
    corpus.check(version)
    assert len(corpus.segments()) == 1


def test_run_of_an_older_version_leaves_the_newer_ones_segment(corpus: Corpus) -> None:
    first = corpus.publish(40)
    second = corpus.publish(40)
    corpus.check(second)
    before = corpus.segments()
    corpus.check(first)
    corpus.check(second)
    assert corpus.segments()[0] in before


def test_segment_that_another_run_deletes_is_made_again(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes between the look for segments and the look-up in them, as a merge deletes it."""
    version = corpus.publish(40)
    corpus.check(version)
    real = band_index.find_hash_bands
    calls = []

    def late(*arguments: Any) -> Iterator[band_segments.Bands]:
        calls.append(arguments)
        if len(calls) == 1:
            corpus.root.store.delete_many([info.key for info in corpus.root.store.list("tables/")])
        yield from real(*arguments)

    monkeypatch.setattr(band_index, "find_hash_bands", late)
    corpus.check(version)
    assert len(calls) == 2


class Killed(BaseException):
    """What ends a run in mid-write."""


def test_run_killed_at_any_write_is_completed_by_the_next(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run indexes a version, merges four segments into one, and deletes them."""
    for _ in range(3):
        version = corpus.publish(20)
        corpus.check(version)
    version = corpus.publish(20)
    store = version.store
    before = {info.key: bytes(store.get(info.key).data) for info in store.list("tables/")}
    n_writes = 0
    while True:
        store.delete_many([info.key for info in store.list("tables/")])
        for path, data in before.items():
            store.put(path, data)
        remaining = n_writes
        with monkeypatch.context() as patch:
            for name in ("put", "put_if_absent", "delete_many"):
                real = getattr(type(store), name)

                def write(self: object, *arguments: object, real: Any = real) -> None:
                    nonlocal remaining
                    if not remaining:
                        raise Killed
                    remaining -= 1
                    real(self, *arguments)

                patch.setattr(type(store), name, write)
            try:
                corpus.check(version)
                break  # no write was left to be killed at
            except Killed:
                n_writes += 1
        corpus.check(version)
    assert n_writes > 10
    assert len(corpus.segments()) == 1


def test_rows_that_were_excluded_later_are_in_an_older_version(corpus: Corpus) -> None:
    """A segment without them does not cover it."""
    first = corpus.publish(60)
    second = corpus.root.exclude("texts", [row["__key__"] for row in first[::2]], reason="spam")
    corpus.check(second)
    corpus.check(first)
    corpus.check(second)


def test_record_that_was_changed_is_no_record(corpus: Corpus) -> None:
    """Another number of rows would give every document another ordinal."""
    corpus.check(corpus.publish(40))
    (folder,) = list_segments(corpus.root.store, "texts")
    data = bytes(corpus.root.store.get(folder + RECORD).data)
    assert b",40,[]" in data
    with refusal(Corrupt, what="parts", where=folder + RECORD):
        parse_segment(data.replace(b",40,[]", b",41,[]"), folder)
    with refusal(Corrupt, what="files", where=folder + RECORD, accepted=folder):
        parse_segment(
            data.replace(b"/00.parquet", b"/../00.parquet").replace(folder.encode(), b"data/x/"), folder
        )


@pytest.mark.parametrize(
    "record",
    [
        [],
        {},
        {"format": "x", "parts": [], "files": []},
        {"format": 1, "parts": 3, "files": []},
        {"format": 1, "parts": [["p", "s", 3]], "files": []},
        {"format": 1, "parts": [["p", "s", -3, []]], "files": []},
        {"format": 1, "parts": [["p", "s", 3, ["x"]]], "files": []},
        {"format": 1, "parts": [["p", "s", 3, [3]]], "files": []},
        {"format": 1, "parts": [["p", "s", None, None]], "files": []},
        {"format": 1, "parts": [], "files": [{"path": 7, "nbytes": 1, "sha256": "", "n_rows": 1}]},
        {"format": 1, "parts": [], "files": [7]},
    ],
)
def test_record_of_any_json_is_corrupt(record: object) -> None:
    with refusal(Corrupt, what="record", where="tables/texts/bands/x/segment.json"):
        parse_segment(json.dumps(record).encode(), "tables/texts/bands/x/")


def test_segment_of_a_newer_release_stays(corpus: Corpus) -> None:
    version = corpus.publish(40)
    path = "tables/texts/bands/0123456789abcdef/segment.json"
    corpus.root.store.put(path, b'{"format": 2, "shards": []}')
    corpus.check(version)
    corpus.check(version)
    assert len(list_segments(corpus.root.store, "texts")) == 2


def test_rest_of_a_killed_run_and_unused_segments_go_after_a_day(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = corpus.publish(40)
    corpus.root.store.put("tables/texts/bands/0123456789abcdef/00.parquet", b"the rest of a run")
    corpus.check(version)
    assert len(list_segments(corpus.root.store, "texts")) == 2
    monkeypatch.setattr(band_coverage, "KEPT_S", -60.0)
    corpus.check(version)
    assert len(list_segments(corpus.root.store, "texts")) == 1


def test_field_that_is_no_signature_is_refused(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    root.create()
    with root.write("texts") as writer:
        writer.add("a", {FIELD: np.zeros(3, np.uint32)})
    with refusal(FieldMismatch, what=FIELD, given="uint32 [3]"):
        documents_with_bands(root.open("texts@1"), FIELD, np.zeros((1, 14), np.uint64))
