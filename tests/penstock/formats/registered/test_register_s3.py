"""Archives in a bucket: the same as in a folder, what it costs in requests, and an object that is replaced there."""

import itertools
import tarfile
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.columnar.parquet_chunks import CHUNKS
from loader.errors import Changed
from loader.storage import open_store
from loader.storage.requests import Traffic, count_requests
from penstock.formats.registration.register import register
from penstock.upkeep.verify.version import verify
from tests.penstock.formats.builders import tars
from tests.refusals import refusal

_numbers = itertools.count()


@pytest.fixture
def place(aws):
    """(URL, store) of an empty place in the bucket."""
    url = f"s3://bucket/registered-{next(_numbers)}"
    return url, open_store(url, aws)


def put(store, tars, archives):
    for name, members in archives.items():
        store.put(name, tars.tar_bytes(members))


def contents(store):
    """key -> text, as tarfile finds them."""
    out = {}
    for info in store.list():
        with tarfile.open(fileobj=BytesIO(store.get(info.key).data)) as archive:
            for member in archive:
                if member.name.endswith(".txt"):
                    out[member.name[:-4]] = archive.extractfile(member).read().decode()
    return out


def texts(plan, n, **how):
    out = []
    with loader.Loader(plan, **how) as batches:
        for _, batch in zip(range(n), batches, strict=False):
            keys = [key for _, key in (one for one in batch.ids if one)]
            out.append((batch.digest, dict(zip(keys, map(str, batch.fields["txt"]), strict=False))))
        assert not batches.metrics()["refetched_total"]
    return out


def test_training_reads_archives_in_a_bucket(root, place, tmp_path):
    url, store = place
    put(store, tars, {f"shards/{k}.tar": tars.number_samples(k, 30) for k in range(3)})
    version = register(root, "webdataset", url, "photos").version
    plan = loader.plan({"p": version.select("txt", "cls")}, seed=1, global_batch=30)
    found = texts(plan, 3)
    assert {key: text for _, batch in found for key, text in batch.items()} == contents(store)
    assert texts(plan, 3, cache=loader.NodeCache(path=tmp_path / "cache")) == found
    assert texts(plan, 3, cache=loader.NodeCache(path=tmp_path / "cache")) == found
    assert texts(plan, 3, workers=0) == found
    assert verify(root, "photos", full=True).problems == []
    assert register(loader.Root(tmp_path / "other"), "webdataset", url, "photos").version.id == version.id


def test_training_reads_a_table_in_a_bucket(root, place, tmp_path):
    url, store = place
    for k in range(2):
        out = BytesIO()
        rows = range(60 * k, 60 * k + 60)
        table = pa.table({"id": [f"k{n}" for n in rows], "text": [f"text {n}" for n in rows]})
        pq.write_table(table, out, row_group_size=20)
        store.put(f"{k}.parquet", out.getvalue())
    version = register(root, "parquet", url, "texts", key="id", fields={"text": "txt"}).version
    plan = loader.plan({"p": version.select("text.txt")}, seed=1, global_batch=40)

    def read(**how):
        CHUNKS.begin_anew()
        with loader.Loader(plan, **how) as batches:
            some = [batch for _, batch in zip(range(3), batches, strict=False)]
        return [(one.digest, list(map(str, one["text.txt"]))) for one in some]

    found = read(workers=0)
    assert {text for _, batch in found for text in batch} == {f"text {n}" for n in range(120)}
    cached = [read(cache=loader.NodeCache(path=tmp_path / "cache")) for _ in range(2)]
    assert [read(cache=2**20), *cached] == [found] * 3
    traffic = Traffic()
    CHUNKS.begin_anew()
    with count_requests(traffic):
        view = loader.Root(root.url).open("texts").select("text.txt")
        with loader.Loader(loader.plan({"p": view}, seed=1, global_batch=120), workers=0) as batches:
            next(iter(batches))
    assert traffic.requests < 20  # chunks that lie together share one
    out = BytesIO()
    pq.write_table(pa.table({"id": ["k0"], "text": ["other"]}), out)
    store.put("1.parquet", out.getvalue())
    with refusal(Changed, what="size", within="/1.parquet"):
        read(workers=0)


def test_object_that_is_replaced_in_a_bucket_is_named(root, place):
    url, store = place
    put(store, tars, {f"{k}.tar": tars.number_samples(k, 30) for k in range(2)})
    version = register(root, "webdataset", url, "photos").version
    size = store.head("1.tar").nbytes
    other = bytearray(store.get("1.tar").data)
    other[600:610] = b"0123456789"
    store.put("1.tar", bytes(other))
    plan = loader.plan({"p": version.select("txt")}, seed=1, global_batch=60)
    with refusal(Changed, what="change token", within="/1.tar"):
        texts(plan, 1)
    assert store.head("1.tar").nbytes == size
    put(store, tars, {"1.tar": tars.number_samples(1, 40)})
    with refusal(Changed, what="size", within="/1.tar", accepted=size):
        texts(plan, 1, workers=0)
    told = [one.what for one in verify(root, "photos").problems]
    assert len(told) == 1
    assert "registered were" in told[0]
    assert register(root, "webdataset", url, "photos").replaced == 1
    plan = loader.plan({"p": root.open("photos").select("txt")}, seed=1, global_batch=70)
    assert texts(plan, 1)[0][1] == contents(store)


def test_what_a_walk_costs_does_not_grow_with_the_payloads(root, place, monkeypatch):
    """Of small members everything is read in few requests; of large ones a request each, and next to no byte."""
    from penstock.formats.reading import object_file

    url, store = place
    read = []
    fetch = object_file.ForwardReader._fetch

    def count_fetch(self, offset, nbytes):
        fetch(self, offset, nbytes)
        read.append(len(self._data))

    monkeypatch.setattr(object_file.ForwardReader, "_fetch", count_fetch)
    costs = {}
    for name, n, nbytes in (
        ("small", 400, 3000),
        ("half", 200, 3000),
        ("large", 4, 2**21),
        ("larger", 4, 2**22),
    ):
        put(store, tars, {f"{name}/a.tar": [(f"{i}.bin", bytes(nbytes)) for i in range(n)]})
        read.clear()
        own = loader.Root(f"{root.url}-{name}")
        traffic = Traffic()
        with count_requests(traffic):
            sealed = register(own, "webdataset", f"{url}/{name}", "photos").sealed
        costs[name] = (len(read), sum(read) / store.head(f"{name}/a.tar").nbytes)
        assert sealed == (name in ("small", "half"))
    assert costs["small"][0] <= 4
    assert costs["small"][1] <= 1.0
    assert costs["half"][0] <= 3
    assert costs["half"][1] <= 1.0
    assert costs["large"][0] == costs["larger"][0] == 5
    assert costs["large"][1] < 0.16
    assert costs["larger"][1] < 0.08


@pytest.mark.parametrize("n", [64, 128])
def test_reading_costs_the_requests_of_a_root_four_that_find_the_place_and_one_per_seal(n, place):
    """The table of objects, the listing of the place's records (two), the newest; a seal at an index's first row."""
    url, store = place
    put(store, tars, {f"tars/{k}.tar": tars.number_samples(k, n) for k in range(2)})
    root = loader.Root(f"{url}/root")
    register(root, "webdataset", f"{url}/tars", "photos")
    with root.write("own", part_samples=n) as writer:
        for key, text in contents(open_store(f"{url}/tars")).items():
            writer.add(key, {"txt": text, "cls": 1})
    requests = {}
    for name in ("photos", "own"):
        traffic = Traffic()
        with count_requests(traffic):
            own = loader.Root(root.url)
            version = own.open(name)
            assert version.shard_store
        opened = traffic.requests
        plan = loader.plan({"p": version.select("txt", "cls")}, seed=1, global_batch=2 * n)
        with loader.Loader(plan, workers=0) as batches:
            batch = next(iter(batches))
        requests[name] = opened, batch.stats["requests"]
        own.close()  # its lease is given back while there is a server
    root.close()
    assert requests["photos"][0] == requests["own"][0] + 4
    assert requests["photos"][1] == requests["own"][1] + 2
