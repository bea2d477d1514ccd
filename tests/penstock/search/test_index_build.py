"""`penstock index`: recall, increments, merging, kills, and an index that equals one made at once."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.search import embedding_code_files, embedding_codes, embedding_index, text_files, words
from loader.dataset.search.index_record import SQ8, TEXTS, field_index_record, read_index_record
from loader.dataset.search.segment_reads import coverage, read_segment
from loader.dataset.search.segments import put_segment, version_parts
from loader.dataset.search.text_reads import text_kind
from loader.dataset.versions.sample_search import search_samples
from loader.errors import Conflict, Corrupt, FieldMismatch, FieldNotFound, MissingDependency, NotIndexed
from loader.storage import open_store
from penstock.search.index_build import drop_index, make_index
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.mirror_update import migrate
from tests.dataset.search.vectors import SHAPES, nearest, read_vectors, recall, write_vectors
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S

NUMBERS = 24


@pytest.fixture(params=["faiss", "numpy"])
def with_and_without_faiss(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr("loader.dataset.search.embedding_code_files.import_faiss", lambda: None)
        monkeypatch.setattr("loader.dataset.search.embedding_index.import_faiss", lambda: None)
    return request.param


def write_root(tmp_path, shape="clustered", n=600, batches=3, seed=1):
    """Return a root whose versions append to one another."""
    root = loader.Root(tmp_path / "root")
    vectors = SHAPES[shape](n, NUMBERS, np.random.default_rng(seed))
    each = n // batches
    for number in range(batches):
        write_vectors(
            root,
            vectors[number * each : (number + 1) * each],
            first=number * each,
            part_samples=50,
        )
    return root


def row_codes(version):
    """Return (part, row) -> code of a version's index."""
    how = field_index_record(version, "embedding.npy", SQ8, NUMBERS)
    stored = read_index_record(version.store, how)
    kind = embedding_codes.code_kind(stored)
    covered = coverage(version.store, how.folder, kind, version_parts(version, "embedding.npy"))
    assert (covered.missing, covered.damaged) == ((), {})
    by_row = {}
    for path in covered.segments:
        segment = read_segment(version.store, path, kind)
        values = iter(segment.values["code"].to_pylist())
        for part in segment.parts:
            by_row |= {(part.part, row): next(values) for row in range(part.n_rows)}
    return by_row


@pytest.mark.parametrize("shape", SHAPES)
def test_recall_of_the_ten_nearest(tmp_path, shape, with_and_without_faiss):
    root = write_root(tmp_path, shape, n=800, batches=1)
    make_index(root, "d", "embedding.npy")
    version = root.open("d")
    vectors = read_vectors(version)
    keys = version.keys(np.arange(len(version)))
    total = 0.0
    for ordinal in range(0, 800, 40):
        result = version.search(like=keys[ordinal], k=10)
        expected, scores = nearest(vectors, vectors[ordinal], 10)
        total += recall(result.ordinals.tolist(), expected)
        assert result.scores[0] == pytest.approx(1, abs=1e-6)
        assert result.scores == pytest.approx(scores, abs=1e-3)
        assert (result.exact, result.n_searched) == (False, 800)
    assert total / 20 >= 0.99


def test_codes_rank_and_stored_embeddings_score(tmp_path, with_and_without_faiss, monkeypatch):
    root = write_root(tmp_path)
    make_index(root, "d")
    version = root.open("d")
    vectors = read_vectors(version)
    # So few are compared again that the codes decide.
    monkeypatch.setattr("loader.dataset.search.similarity.RESCORED_PER_RESULT", 1)
    monkeypatch.setattr("loader.dataset.search.similarity.RESCORED", 40)
    for where, members in (("w < 1000", np.ones(600, bool)), ("third = 1", None)):
        if members is None:
            members = version.samples().select("third").collect()["third"].to_numpy() == 1
        result = version.search(like=vectors[5], k=20, where=where)
        expected, scores = nearest(vectors, vectors[5], 20, members)
        assert result.ordinals.tolist() == expected
        assert result.scores == pytest.approx(scores, abs=1e-6)
        assert result.n_searched == members.sum()


def test_few_selected_codes_are_gathered_and_many_are_scanned(tmp_path, monkeypatch):
    root = write_root(tmp_path)
    make_index(root, "d", "embedding.npy")
    version = root.open("d")
    vectors = read_vectors(version)
    scans = []

    def record_scans(scan, kind):
        def call(*arguments):
            scans.append(kind)
            return scan(*arguments)

        return call

    monkeypatch.setattr("loader.dataset.search.similarity.RESCORED_PER_RESULT", 1)
    monkeypatch.setattr("loader.dataset.search.similarity.RESCORED", 10)
    monkeypatch.setattr(
        embedding_code_files, "faiss_scan", record_scans(embedding_code_files.faiss_scan, "faiss")
    )
    monkeypatch.setattr(
        embedding_code_files, "numpy_scan", record_scans(embedding_code_files.numpy_scan, "numpy")
    )
    by_share = {2: {"faiss"}, 10: {"numpy"}}
    for step, expected_scans in by_share.items():
        members = np.arange(600) % step == 1
        scans.clear()
        result = search_samples(version, like=vectors[5], k=20, members=members)
        expected, _ = nearest(vectors, vectors[5], 20, members)
        assert result.ordinals.tolist() == expected
        assert set(scans) == expected_scans
        assert len(scans) == 3  # a file for each batch


def test_only_new_parts_are_coded_and_the_index_equals_one_made_at_once(tmp_path):
    root = write_root(tmp_path)
    assert [index.n_new for index in make_index(root, "d@1").fields] == [200, 200]
    root.exclude("d", ["k000003", "k000404"], reason="blurred")
    assert [index.n_new for index in make_index(root, "d").fields] == [400, 400]
    assert [index.n_new for index in make_index(root, "d@2").fields] == [0, 0]
    root.retire("d@2", reason="old")
    stepwise = row_codes(root.open("d"))
    assert len(stepwise) == 600
    segments = [info.key for info in root.store.list("search/") if not info.key.endswith("how.json")]
    root.store.delete_many(segments)
    assert [index.n_new for index in make_index(root, "d").fields] == [600, 600]
    assert row_codes(root.open("d")) == stepwise
    assert row_codes(root.open("d@1")).items() <= stepwise.items()


def test_excluded_samples_are_coded_but_never_returned(tmp_path):
    root = write_root(tmp_path)
    make_index(root, "d")
    before = root.open("d").search(like="k000003", k=600).keys()
    root.exclude("d", before[:5], reason="blurred")
    later = root.open("d").search(like=before[5], k=600)
    assert not set(before[:5]) & set(later.keys())
    assert len(later) == 595
    assert root.open("d@3").search(like=before[0], k=3).keys() == before[:3]


def test_sixteen_small_segments_are_merged(tmp_path):
    root = loader.Root(tmp_path / "root")
    vectors = SHAPES["clustered"](170, NUMBERS, np.random.default_rng(2))
    n_segments = []
    for number in range(17):
        write_vectors(root, vectors[10 * number : 10 * number + 10], first=10 * number)
        index, _ = make_index(root, "d").fields
        n_segments.append(index.n_segments)
    assert n_segments == [*range(1, 16), 1, 2]
    version = root.open("d")
    stored = read_vectors(version)
    assert version.search(like=stored[3], k=30).ordinals.tolist() == nearest(stored, stored[3], 30)[0]
    assert root.open("d@3").search(like="k000001", k=30).n_searched == 30
    table = pq.read_table(f"{root.url}/{largest_segment(root)}")
    assert table.column_names == ["part", "row", "code"]
    assert table.num_rows == 160


def largest_segment(root):
    infos = [info for info in root.store.list("search/") if info.key.endswith(".codes.parquet")]
    return max(infos, key=lambda info: info.nbytes).key


def test_damaged_and_forged_segments_are_named_and_their_samples_compared(tmp_path):
    root = write_root(tmp_path, batches=2)
    make_index(root, "d", "embedding.npy")
    whole = root.open("d").search(like="k000005", k=30)
    path = largest_segment(root)
    data = bytearray(root.store.get(path).data)
    data[len(data) // 3] ^= 4
    root.store.put(path, bytes(data))
    version = loader.Root(root.url).open("d")
    result = version.search(like="k000005", k=30, cache=tmp_path / "empty")
    assert result.keys() == whole.keys()
    assert list(result.damaged) == [path]
    assert result.n_searched == 600
    how = next(info.key for info in root.store.list("search/") if info.key.endswith("how.json"))
    body = json.loads(root.store.get(how).data)
    for change in (
        {"numbers": 12},
        {"low": body["high"]},
        {"dataset": "e"},
        {"low": [None] * NUMBERS},
        {"code": 7},
    ):
        root.store.put(how, json.dumps(body | change).encode())
        with refusal(Corrupt, what="record of an index", where=how):
            loader.Root(root.url).open("d").search(like="k000005")


@pytest.mark.parametrize("ending", [".codes.parquet", ".texts.parquet"])
def test_segment_damaged_below_its_footer_is_made_again(tmp_path, ending):
    root = write_root(tmp_path, batches=2)
    make_index(root, "d")
    before = {info.key: root.store.get(info.key).data for info in root.store.list("search/")}
    path = min(key for key in before if key.endswith(ending))
    root.store.put(path, before[path][:60] + bytes(40) + before[path][100:])
    indexes = make_index(root, "d").fields
    assert sum(index.n_new for index in indexes) == 300
    assert [index.damaged for index in indexes] == [{}, {}]
    assert {info.key: root.store.get(info.key).data for info in root.store.list("search/")} == before


def test_parts_of_a_damaged_merged_segment_are_indexed_again(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.search.missing_parts.MERGE_AT", 3)
    root = loader.Root(tmp_path / "root")
    vectors = SHAPES["clustered"](30, NUMBERS, np.random.default_rng(2))
    for number in range(3):
        write_vectors(root, vectors[10 * number : 10 * number + 10], first=10 * number)
        make_index(root, "d", "embedding.npy")
    whole = row_codes(root.open("d"))
    merged = largest_segment(root)
    small = [info.key for info in root.store.list("search/") if info.key.endswith(".codes.parquet")]
    small.remove(merged)
    root.store.delete_many(small)  # as a collector does
    data = root.store.get(merged).data
    root.store.put(merged, data[:200] + bytes([data[200] ^ 1]) + data[201:])
    (index,) = make_index(root, "d", "embedding.npy").fields
    assert (index.n_new, index.damaged) == (30, {merged: index.damaged[merged]})
    root.store.delete_many([merged])
    assert row_codes(root.open("d")) == whole


def test_forged_codes_change_ranks_only(tmp_path):
    """A writer of `search/` can hide samples, but shows none that the version lacks, and no other score."""
    root = write_root(tmp_path, batches=2)
    root.exclude("d", ["k000007"], reason="blurred")
    make_index(root, "d", "embedding.npy")
    version = root.open("d")
    how = read_index_record(root.store, field_index_record(version, "embedding.npy", SQ8, NUMBERS))
    kind = embedding_codes.code_kind(how)
    parts = [part.own for part in version_parts(version, "embedding.npy")]
    root.store.delete_many([info.key for info in root.store.list(how.folder) if info.key != how.path])
    random_codes = [np.random.default_rng(1).bytes(NUMBERS) for _ in range(600)]
    forged = pa.table({"code": pa.array(random_codes, pa.binary(NUMBERS))})
    put_segment(
        root.store,
        how.folder,
        kind,
        parts,
        forged,
    )
    vectors = read_vectors(version)
    result = loader.Root(root.url).open("d").search(like=vectors[9], k=50)
    assert len(set(result.ordinals.tolist())) == 50
    assert not {"k000007"} & set(result.keys())
    assert result.scores == pytest.approx(vectors[result.ordinals] @ vectors[9], abs=1e-6)
    assert result.scores.tolist() == sorted(result.scores.tolist(), reverse=True)


def test_forged_texts_show_no_excluded_or_foreign_sample(tmp_path):
    """A writer of `search/` can make a live sample match any word, but no other sample."""
    root = write_root(tmp_path, n=60, batches=2)
    other = write_root(tmp_path / "other", n=30, batches=1)
    root.exclude("d", ["k000007"], reason="private")
    make_index(root, "d", "caption.txt")
    version = root.open("d")
    how = field_index_record(version, "caption.txt", TEXTS)
    root.store.delete_many([info.key for info in root.store.list(how.folder) if info.key != how.path])
    own = [part.own for part in version_parts(version, "caption.txt")]
    foreign = [part.own for part in version_parts(other.open("d"), "caption.txt")]
    parts = [*foreign, *own]
    n_rows = sum(part.n_rows for part in parts)
    put_segment(
        root.store,
        how.folder,
        text_kind(how),
        parts,
        pa.table({"text": ["zebra"] * n_rows}),
    )
    result = loader.Root(root.url).open("d").search("zebra", k=100)
    assert result.damaged == {}
    assert result.ordinals.tolist() == list(range(59))
    assert not {"k000007"} & set(result.keys())


def test_local_files_are_shared_and_written_again_if_they_are_damaged(tmp_path, with_and_without_faiss):
    root = write_root(tmp_path)
    make_index(root, "d", "embedding.npy")
    cache = tmp_path / "cache"
    whole = root.open("d").search(like="k000005", cache=cache).keys()
    files = sorted(path for path in (cache / "search").iterdir() if path.suffix != ".json")
    stamps = {path: path.stat().st_mtime_ns for path in files}
    assert loader.Root(root.url).open("d").search(like="k000005", cache=cache).keys() == whole
    assert {path: path.stat().st_mtime_ns for path in files} == stamps
    files[0].write_bytes(files[0].read_bytes()[:-1])
    rows = files[1].with_suffix(".json")
    rows.write_bytes(b'{"parts": 7}')
    if with_and_without_faiss == "faiss":
        head = bytearray(files[2].read_bytes())
        head[20] ^= 1
        files[2].write_bytes(head)
    assert loader.Root(root.url).open("d").search(like="k000005", cache=cache).keys() == whole
    assert len(rows.read_bytes()) > 100


def test_codes_that_a_loader_evicts_are_written_again(tmp_path, with_and_without_faiss, monkeypatch):
    root = write_root(tmp_path, n=200, batches=2)
    make_index(root, "d", "embedding.npy")
    cache = tmp_path / "cache"
    whole = root.open("d").search(like="k000005", cache=cache).keys()

    def evict(path):
        path.unlink()

    with monkeypatch.context() as patch:
        patch.setattr("loader.dataset.search.embedding_code_files._touch", evict)
        assert loader.Root(root.url).open("d").search(like="k000005", cache=cache).keys() == whole
    for file in (cache / "search").iterdir():
        os.utime(file, (1, file.stat().st_mtime))
    loader.Root(root.url).open("d").search(like="k000005", cache=cache)
    used = [file.stat().st_atime for file in (cache / "search").iterdir()]
    assert len(used) == 4
    assert min(used) > 1


def test_drop_deletes_the_index_of_a_field(tmp_path):
    root = write_root(tmp_path)
    make_index(root, "d")
    dropped = drop_index(root, "d", "embedding.npy")
    assert dropped[-1].endswith("how.json")
    endings = {info.key.split(".", 1)[1] for info in root.store.list("search/")}
    assert endings == {"json", "texts.parquet"}
    assert root.open("d").search(like="k000005").exact
    drop_index(root, "d")
    assert not list(root.store.list("search/"))
    assert drop_index(root, "d") == []


def test_limits_of_a_query(tmp_path, monkeypatch):
    root = write_root(tmp_path)
    make_index(root, "d")
    monkeypatch.setattr(embedding_index, "MOST_CODES", 500)
    with refusal(NotIndexed, what="codes", where="d@3", given=600, accepted=500):
        root.open("d").search(like="k000005")
    assert len(root.open("d").search(like="k000005", where="third = 0", k=300)) == 200
    monkeypatch.undo()
    monkeypatch.setattr(embedding_index, "NUMPY_MOST_CODES", 500)
    monkeypatch.setattr(embedding_index, "import_faiss", lambda: None)
    with pytest.raises(MissingDependency, match=r"pip install 'penstock-data\[search\]'"):
        root.open("d").search(like="k000005")


def test_fields_that_cannot_be_indexed(tmp_path):
    root = loader.Root(tmp_path / "root")
    with root.write("d") as writer:
        for number in range(3):
            writer.add(f"k{number}", {"mask.npy": np.ones((2, 2)), "zero.npy": np.zeros(4, np.float32)})
    with pytest.raises(FieldNotFound):
        make_index(root, "d")
    with refusal(FieldMismatch, what="mask.npy", where="d@1", accepted="arrays of floats with one dimension"):
        make_index(root, "d", "mask.npy")
    with refusal(
        FieldMismatch, what="zero.npy", where="d@1", accepted="vectors that are finite and not zero"
    ):
        make_index(root, "d", "zero.npy")


def test_mirror_refuses(tmp_path):
    root = write_root(tmp_path, n=60, batches=1)

    place = open_store(str(tmp_path / "mirror"))
    migrate(root, place, Pace())
    mirror = loader.Root(place.url)
    with refusal(Conflict, what="mirror", where=mirror.url, accepted=root.url):
        make_index(mirror, "d")


def test_embeddings_without_a_direction_have_no_code(tmp_path):
    root = loader.Root(tmp_path / "root")
    vectors = SHAPES["clustered"](40, NUMBERS, np.random.default_rng(4))
    vectors[3] = 0
    vectors[7, 2] = np.nan
    write_vectors(root, vectors)
    make_index(root, "d", "embedding.npy")
    version = root.open("d")
    result = version.search(like="k000005", k=100)
    assert len(result) == result.n_searched == 38
    assert not {"k000003", "k000007"} & set(result.keys())
    assert sum(code is None for code in row_codes(version).values()) == 2


KILLED = """
import os, signal, sys
import loader
from penstock.search.index_build import make_index
root = loader.Root(sys.argv[1])
kill_at, after = int(sys.argv[2]), sys.argv[3] == "after"
store_type = type(root.store)
put = store_type.put_if_absent
n = 0
def put_or_die(store, key, data):
    global n
    if key.startswith("search/"):
        n += 1
        if n == kill_at and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        put(store, key, data)
        if n == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return
    put(store, key, data)
store_type.put_if_absent = put_or_die
make_index(root, "d")
"""


def kill_make_index(root, kill_at, when):
    """Run `make_index` in a process that is killed at a write, and return whether it was."""
    command = [sys.executable, "-c", KILLED, root.url, str(kill_at), when]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def test_killed_at_each_write_and_made_again(tmp_path):
    root = loader.Root(tmp_path / "root")
    vectors = SHAPES["clustered"](160, NUMBERS, np.random.default_rng(5))
    for number in range(16):
        write_vectors(root, vectors[10 * number : 10 * number + 10], first=10 * number, part_samples=10)
    for kill_at in (1, 9, 17, 18):
        for when in ("before", "after"):
            assert kill_make_index(root, kill_at, when)
            version = loader.Root(root.url).open("d")
            assert len(version.search(like="k000005", k=200)) == 160
            stepwise = make_index(root, "d", "embedding.npy")
            assert stepwise.fields[0].damaged == {}
            stepwise_codes = row_codes(version)
            drop_index(root, "d")
            make_index(root, "d")
            assert row_codes(version) == stepwise_codes
            assert len(version.search("red cup")) == 60
            drop_index(root, "d")


def test_two_makers_at_once(tmp_path):
    root = write_root(tmp_path)
    command = [sys.executable, "-c", KILLED, root.url, "1000", "before"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait(timeout=PATIENCE_S) for process in processes] == [0, 0]
    assert make_index(root, "d").fields[0].n_new == 0
    assert len(row_codes(root.open("d"))) == 600


def test_mapped_texts_are_searched_as_texts_in_memory(tmp_path, monkeypatch):
    """Indexed or not, the texts of a version lie in files without a name, and none is left."""
    captions = ("a red cup", "a cup, red", "杯 red", "a blue cup")
    with loader.Root(tmp_path / "root") as root:
        with root.write("d", part_samples=25) as writer:
            for i in range(60):
                writer.add(f"k{i:02d}", {"caption.txt": f"{captions[i % 4]} {i}"}, metadata={"w": i})
        queries = ("red", "cup -red", '"red cup"', "7", "杯")
        expected = [root.open("d").search(query).keys() for query in queries]
        assert len(expected[0]) == 45
        monkeypatch.setattr(words, "FOLD_ROWS", 7)
        monkeypatch.setattr(text_files, "LEAST_MAPPED_BYTES", 0)
        for is_indexed in (False, True):
            if is_indexed:
                make_index(root, "d")
            version = root.open("d")
            assert [version.search(query).keys() for query in queries] == expected
            narrow = version.search("red", where="w < 9").keys()
            assert narrow == [key for key in expected[0] if key < "k09"]
    assert not list(embedding_code_files.scratch_folder().glob("*.texts"))
