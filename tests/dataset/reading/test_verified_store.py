"""verify="sha256": bytes that were replaced are refused, whatever checksums they have, on every way that reads them."""

import hashlib
import itertools
import pickle
import shutil
import tempfile
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pytest
from google_crc32c import value

import loader
from loader.dataset.reading.sha256_store import VerifiedStore
from loader.dataset.reading.verified_bucket_reads import FieldPart, PartsOfField, read_parts
from loader.dataset.shards import index, shard
from loader.dataset.shards.address import FieldAddress, SampleAddress
from loader.dataset.shards.shard import PAGE_BYTES, PageHashes
from loader.dataset.tables.parquet import table_bytes
from loader.dataset.writing import run_tables
from loader.dataset.writing.redact import redact_shard
from loader.errors import Changed, Corrupt, InvalidRuntime
from loader.storage import ByteRange, open_store
from loader.storage.store import as_disk
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal

SIZES = (0, 1, 700, 5000, PAGE_BYTES - 512, PAGE_BYTES, 3 * PAGE_BYTES + 77)
_numbers = itertools.count()


def forge_crc(data):
    """Other bytes, as many and with the same CRC-32C: the last four make up for what was changed before them."""
    out = bytearray(data)
    out[-9] ^= 0xFF
    zeros = value(bytes(len(out)))
    rows = [
        (value(bytes(len(out) - 4) + (1 << bit).to_bytes(4, "little")) ^ zeros, 1 << bit) for bit in range(32)
    ]
    wanted, last = value(bytes(data)) ^ value(bytes(out)), 0
    for bit in range(31, -1, -1):  # which of the last 32 bits change the checksum by `wanted`
        pivot = next(row for row in rows if row[0] >> bit & 1)
        rows = [(a ^ pivot[0], b ^ pivot[1]) if a >> bit & 1 else (a, b) for a, b in rows if (a, b) != pivot]
        if wanted >> bit & 1:
            wanted, last = wanted ^ pivot[0], last ^ pivot[1]
    out[-4:] = (int.from_bytes(out[-4:], "little") ^ last).to_bytes(4, "little")
    assert value(bytes(out)) == value(bytes(data))
    assert out != data
    return bytes(out)


def write(url):
    """Samples of all sizes, and arrays of one size, which are read in rows."""
    rng = np.random.default_rng(5)
    with loader.Root(url).write("d", shard_bytes=2**20) as writer:
        for i in range(24):
            x = rng.integers(0, 255, (3, 40), np.uint8)
            writer.add(f"k{i:02d}", {"b.bin": rng.bytes(SIZES[i % len(SIZES)]), "x.npy": x})
    return loader.Root(url).open("d")


def forge(url, key, field):
    """Put another shard in the place of the one that has this sample, which is right but for these bytes."""
    version = loader.Root(url).open("d")
    (address,) = [
        one for one in version.address(np.arange(len(version)), ["b.bin", "x.npy"]) if one.key == key
    ]
    place = address.fields[field]
    data = bytearray(version.store.get(place.path).data)
    some = slice(place.offset, place.offset + place.nbytes)
    data[some] = forge_crc(data[some])
    version.store.put(place.path, bytes(data))
    return address


@pytest.fixture(params=["disk", "memory"])
def url(request, tmp_path):
    return str(tmp_path / "root") if request.param == "disk" else f"memory://verified-{next(_numbers)}"


def samples(url, verify="sha256", cache=None, epochs=1, workers=0, **how):
    """(field, field) of each sample, in the order of a plan."""
    version = loader.Root(url, verify=verify).open("d")
    plan = loader.plan({"d": version}, seed=1, global_batch=4)
    how = {"framework": "numpy", "epochs": epochs, "cache": cache, "workers": workers, **how}
    with loader.Loader(plan, 0, 1, **how) as batches:
        return [
            (bytes(data), x.tobytes())
            for batch in batches
            for data, x in zip(batch["b.bin"], batch["x.npy"], strict=True)
        ]


def test_samples_are_those_of_the_default(url):
    write(url)
    assert samples(url, epochs=2) == samples(url, "crc32c", epochs=2)


@pytest.mark.parametrize("field", ["b.bin", "x.npy"])
@pytest.mark.parametrize("cache", [None, 0, "folder"])
def test_shard_with_forged_checksums_is_read_by_default_and_refused_by_sha256(url, field, cache, tmp_path):
    """Also from a node cache that readers by CRC-32C have filled."""
    write(url)
    cache = str(tmp_path / "cache") if cache == "folder" else cache
    sound = samples(url, "crc32c")
    address = forge(url, "k05", field)
    wrong = set(samples(url, "crc32c", cache, on_corrupt="raise")) - set(sound)
    assert len(wrong) == 1
    path = address.fields[field].path
    # Fields share the page: the first one that is read is named.
    with refusal(Corrupt, within=path, accepted="the SHA-256 in its index"):
        samples(url, cache=cache, on_corrupt="raise")
    assert set(samples(url, cache=cache, corrupt_budget=1.0)) <= set(sound)


def test_workers_verify_too(tmp_path):
    url = str(tmp_path / "root")
    write(url)
    forge(url, "k05", "x.npy")
    with refusal(Corrupt, what="x.npy", accepted="the SHA-256 in its index"):
        samples(url, on_corrupt="raise", executor="processes", workers=1)


def test_it_is_sent_to_other_processes():
    url = f"memory://verified-{next(_numbers)}"
    version = write(url)
    root = loader.Root(url, verify="sha256")
    assert version.verify == "crc32c"
    assert (
        root.open("d").verify
        == root.alone.verify
        == root.exclude("d", ["k01"], reason="x").verify
        == "sha256"
    )
    assert pickle.loads(pickle.dumps(root.open("d"))).verify == "sha256"  # noqa: S301
    assert pickle.loads(pickle.dumps(root)).verify == "sha256"  # noqa: S301
    with refusal(InvalidRuntime, what="verify", given="md5", accepted=("crc32c", "sha256")):
        loader.Root(url, verify="md5")


@pytest.fixture(params=["disk", "memory"])
def origin(request, tmp_path):
    return open_store(str(tmp_path) if request.param == "disk" else f"memory://verified-{next(_numbers)}")


def hashes(data, page_bytes):
    pages = [data[start : start + page_bytes] for start in range(0, len(data), page_bytes)]
    return PageHashes(b"".join(hashlib.sha256(page).digest() for page in pages), page_bytes, len(data))


def ways(store):
    """Every verb that reads ranges: (spans, etag) -> (their bytes, the etag)."""

    def each(spans, etag):
        blobs = [store.get_range("s", *span, etag) for span in spans]
        return [blob.data for blob in blobs], blobs[0].etag

    def together(spans, etag):
        blobs = store.get_ranges("s", spans, etag=etag, max_gap=3)
        return [blob.data for blob in blobs], blobs[0].etag

    def read_in_memory(spans, etag):
        memory = [bytearray(span.nbytes) for span in spans]
        pieces = [(*span, [one]) for span, one in zip(spans, memory, strict=True)]
        return memory, as_disk(store).read_into("s", sorted(pieces, key=itemgetter(0)), etag=etag)

    return [each, together] + (
        [lambda spans, etag: as_disk(store).read_each("s", spans, etag=etag), read_in_memory]
        if as_disk(store)
        else []
    )


def test_it_gives_what_the_store_gives_or_nothing(origin):
    """Any ranges of a shard with some wrong pages, in any order: those that touch one are refused, others are right."""
    rng = np.random.default_rng(7)
    for _ in range(60):
        size, page_bytes = int(rng.integers(1, 90)), int(rng.integers(1, 20))
        data = rng.bytes(size)
        wrong = {int(page) for page in rng.integers(0, -(-size // page_bytes), int(rng.integers(0, 3)))}
        stored = bytearray(data)
        for page in wrong:
            stored[page * page_bytes] ^= 1
        origin.put("s", bytes(stored))
        store = VerifiedStore(origin, {"s": hashes(data, page_bytes)}.__getitem__)
        etag = None
        for _ in range(12):
            at = rng.integers(0, size + 1, (int(rng.integers(1, 5)), 2))
            spans = [ByteRange(low, high - low) for low, high in np.sort(at).tolist()]
            touched = {
                byte // page_bytes for offset, nbytes in spans for byte in range(offset, offset + nbytes)
            }
            kinds = ways(store)
            way = kinds[int(rng.integers(len(kinds)))]
            if touched & wrong:
                with refusal(Corrupt, what="SHA-256", where=f"{store.url}/s"):
                    way(spans, etag)
            else:
                found, seen = way(spans, etag)
                assert [bytes(one) for one in found] == [data[o : o + n] for o, n in spans]
                etag = seen if rng.integers(2) else etag
            offset, nbytes = np.array(spans).T
            with tempfile.TemporaryFile() as file:
                file.write(stored)
                file.flush()
                now = origin.head("s").etag
                is_right = store.is_verified("s", now, offset, nbytes, file.fileno())
            assert is_right == (not touched & wrong)


def test_what_lies_behind_the_shard_is_not_read(origin):
    origin.put("s", bytes(100))
    store = VerifiedStore(origin, {"s": hashes(bytes(90), 16)}.__getitem__)
    for way in ways(store):
        with refusal(Corrupt, what="range", where=f"{store.url}/s", given=90):
            way([ByteRange(85, 10)], None)


def test_page_is_read_whole_once(origin, stores):
    data = np.random.default_rng(0).bytes(1000)
    origin.put("s", data)
    counted = stores.Counting(origin)
    store = VerifiedStore(counted, {"s": hashes(data, 64)}.__getitem__)
    for _ in range(3):
        assert store.get_range("s", 70, 4).data == data[70:74]
        assert store.get_range("s", 120, 10).data == data[120:130]
    assert counted.nbytes == 64 + 2 * 64 + 2 * (4 + 10)


def test_another_object_is_verified_anew(origin):
    """By whoever did not pin the one before; others are told of it as ever."""
    data = np.random.default_rng(0).bytes(1000)
    origin.put("s", data)
    for way in range(len(ways(origin))):
        store = VerifiedStore(origin, {"s": hashes(data, 64)}.__getitem__)
        (found,), etag = ways(store)[way]([ByteRange(0, 1000)], None)
        assert bytes(found) == data
        origin.put("s", data[:500] + b"?" + data[501:])
        with pytest.raises(Changed):
            ways(store)[way]([ByteRange(490, 20)], etag)
        with refusal(Corrupt, what="SHA-256", where=f"{store.url}/s", given=[448, 512]):
            ways(store)[way]([ByteRange(490, 20)], None)
        assert bytes(ways(store)[way]([ByteRange(600, 20)], None)[0][0]) == data[600:620]
        origin.put("s", data)
        assert bytes(ways(store)[way]([ByteRange(490, 20)], None)[0][0]) == data[490:510]


def test_mirror_that_has_the_right_bytes_is_asked(tmp_path):
    """As where a CRC-32C is wrong; and what one store gave says nothing of what another gives."""
    url, mirror = str(tmp_path / "root"), str(tmp_path / "mirror")
    write(url)
    sound = samples(url, "crc32c")
    shutil.copytree(url, mirror)
    forge(url, "k05", "b.bin")
    forge(mirror, "k12", "b.bin")
    root = loader.Root(url, mirrors=[mirror], verify="sha256")
    plan = loader.plan({"d": root.open("d")}, seed=1, global_batch=4)
    with loader.Loader(plan, 0, 1, framework="numpy", epochs=3, on_corrupt="raise") as batches:
        found = [bytes(one) for batch in batches for one in batch["b.bin"]]
    assert set(found) == {one for one, _ in sound}


def as_an_earlier_release(patch):
    """Writes indexes without hashes, and shards tables that do not know of any."""
    patch.setattr(
        index, "hashed_table_bytes", lambda table, kind, front, **how: table_bytes(table, kind, **how)
    )
    patch.setattr(run_tables, "SHARDS_SCHEMA", pa.schema(list(run_tables.SHARDS_SCHEMA)[:10]))


def test_shard_of_an_earlier_release_is_read_but_not_proved(url, monkeypatch):
    """Nor silently taken for proved; the same dataset's newer shards are."""
    with monkeypatch.context() as patch:
        as_an_earlier_release(patch)
        version = write(url)
    assert "index_footer_sha256" not in version.parts.shard_rows().column_names
    assert len(samples(url, "crc32c")) == 24
    with refusal(InvalidRuntime, what="verify", given="sha256", accepted="crc32c"):
        samples(url)
    with loader.Root(url).write("d") as writer:
        writer.add("new", {"b.bin": b"1", "x.npy": np.zeros((3, 40), np.uint8)})
    assert version.parts.shard_rows().num_rows < loader.Root(url).open("d").parts.shard_rows().num_rows
    assert b"1" in [one for one, _ in samples(url, "crc32c")]
    root = loader.Root(url, verify="sha256")
    plan = loader.plan({"d": root.open("d").where("key = 'new'")}, seed=1, global_batch=1)
    with loader.Loader(plan, 0, 1, framework="numpy", epochs=1) as batches:
        assert [batch["b.bin"] for batch in batches] == [[b"1"]]


def test_redacted_shard_has_hashes_of_its_own():
    url = f"memory://verified-{next(_numbers)}"
    version = write(url)
    row = version.parts.shard_rows().to_pylist()[0]
    new = redact_shard(version.store, "data/t/a", row, {0: "zzz"})
    data = version.store.get(new["path"]).data
    found = index.IndexFile(version.store, index.IndexPlace.of(new)).page_hashes(new["nbytes"])
    assert found == hashes(data, PAGE_BYTES)
    assert new["index_footer_sha256"] != row["index_footer_sha256"]


def test_run_of_packets_is_verified(origin):
    """Parts of a field, which have checksums of their own."""
    data = np.random.default_rng(3).bytes(1000)
    origin.put("s", data[:500] + forge_crc(data[500:600]) + data[600:])
    places = {
        "mp4": FieldAddress(
            field="mp4", group="g", path="s", offset=100, nbytes=900, crc32c=value(data[100:])
        )
    }
    address = SampleAddress(
        key="k", version="d@1", version_id="v-", part="p", row=0, ordinal=0, fields=places
    )
    store = VerifiedStore(origin, {"s": hashes(data, 64)}.__getitem__)

    def read(offset):
        part = FieldPart(offset - 100, 100, value(data[offset : offset + 100]))
        return read_parts(store, [PartsOfField(address, "mp4", [[part]])])

    assert bytes(read(300)[0][0]) == data[300:400]
    with refusal(
        Corrupt, what="mp4", within="sample 'k'", given=[576, 640], accepted="the SHA-256 in its index"
    ):
        read(500)


def test_verify_full_finds_an_index_with_other_hashes_of_pages(url, monkeypatch):
    """As a release with a bug might write it: the index itself is what the shards table says."""
    real = shard.ShardWriter.pages.fget
    monkeypatch.setattr(shard.ShardWriter, "pages", property(lambda writer: real(writer)[:-1] + b"?"))
    write(url)
    root = loader.Root(url)
    assert not verify(root, "d").problems
    (problem,) = verify(root, "d", full=True).problems
    assert "its index has another SHA-256 of 1 of its pages of 65536 bytes" in problem.what
