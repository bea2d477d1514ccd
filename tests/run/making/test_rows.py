"""Batches read from a disk: arrays into their rows, JPEGs decoded into theirs, and everything that cannot be."""

import os
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.shards.shard import crc32c
from loader.run.batch.columns import BytesColumn
from loader.run.batch.finish import sample_crcs
from loader.storage.disk.store import LocalStore

N = 60
OPTIONS = {"framework": "numpy", "workers": 0}


def jpeg(i):
    return simplejpeg.encode_jpeg(np.full((16 + 8 * (i % 9 == 4), 24, 3), i * 4, np.uint8))


def whole(i):
    """Fields of one size, of two sizes, of any size, empty, in other byte orders and in Fortran's order."""
    return {
        "fixed.npy": np.arange(8, dtype=np.float16).reshape(2, 4) + i,
        "scalar.npy": np.array(i, np.int64),
        "mixed.npy": np.full((3,) if i % 5 else (2, 2), i, np.uint16),
        "kinds.npy": np.full(4, i, np.int16 if i % 4 else np.uint16),  # of one size in bytes
        "ragged.npy": np.full(i % 3, i, np.int32),
        "empty.npy": np.zeros((0, 3), np.float32),
        "big.npy": np.full(3, i, ">i4"),
        "fortran.npy": np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3) * i),
        "jpg": jpeg(i),
        "txt": "" if i % 7 == 0 else f"number {i}",
        "blob.bin": bytes([i]) * (i % 4),
    }


def decode_sample(i):
    return {**whole(i), "jpg": simplejpeg.decode_jpeg(jpeg(i))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A root on a disk: dataset d in several parts and two groups, with two samples taken out; e with fewer fields."""
    path = tmp_path_factory.mktemp("rows") / "root"
    with loader.Root(path) as root:
        groups = {"fixed.npy": "second", "txt": "second"}
        for numbers in (range(N // 2), range(N // 2, N)):
            with root.write("d", part_samples=9, groups=groups) as writer:
                for i in numbers:
                    writer.add(f"k{i:03d}", whole(i), metadata={"i": i})
        root.exclude("d@latest", ["k003", "k017"], reason="blurred")
        with root.write("e", part_samples=50) as writer:
            for i in range(N):
                writer.add(f"k{i:03d}", {name: whole(i)[name] for name in ("scalar.npy", "fixed.npy", "txt")})
    return path


@pytest.fixture(scope="module")
def root(folder):
    with loader.Root(folder) as root:
        yield root


@contextmanager
def without_rows(monkeypatch):
    """Read as from a bucket: by ranges that come as bytes, each decoded by itself."""
    with monkeypatch.context() as patch:
        for name in ("loader.run.making.fetch.as_disk", "loader.dataset.reading.pinned_reads.as_disk"):
            patch.setattr(name, lambda store: None)
        yield


def describe(value):
    if isinstance(value, list | BytesColumn):
        return [describe(one) for one in value]
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def batch_contents(batch):
    fields = {name: describe(value) for name, value in batch.items()}
    return batch.step, batch.ids, batch.digest, batch.nbytes, np.asarray(batch.mask).tolist(), fields


FIELDS = sorted(whole(0))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_every_way_of_reading_makes_the_same_batches(data, root):
    """Any fields, predicate, mixture, batch and rank: from rows as from bytes, and as they were written."""
    names = data.draw(st.sampled_from([("d",), ("d", "e"), ("e",)]))
    sources = {}
    for name in names:
        known = FIELDS if name == "d" else ["fixed.npy", "scalar.npy", "txt"]
        chosen = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=5, unique=True))
        view = root.open(f"{name}@latest").select(*chosen)
        where = data.draw(st.sampled_from([None, "i % 2 = 0", "i < 9 OR i > 40"]))
        sources[name] = view if where is None or name == "e" else view.where(where)
    plan = loader.plan(
        sources,
        seed=data.draw(st.integers(0, 9)),
        global_batch=data.draw(st.integers(3, 70)),
        allow_repeats=True,
    )
    rank = data.draw(st.integers(0, 2))
    decode = data.draw(st.booleans())
    options = {**OPTIONS, "decode": decode}
    with (
        loader.Loader(plan, rank, 3, **options) as batches,
        loader.Loader(plan, rank, 3, transform=lambda sample, rng: sample, **options) as others,
        pytest.MonkeyPatch.context() as patch,
    ):
        for step in range(3):
            batch = batches.batch_at(step)
            assert "refetched" not in batch.stats
            got = batch_contents(batch)
            assert got == batch_contents(others.batch_at(step))
            with without_rows(patch), loader.Loader(plan, rank, 3, **options) as plain:
                assert got == batch_contents(plain.batch_at(step))
    if decode:
        for name, values in field_batches(plan, rank, 2):
            for (_, key), value in zip(*values, strict=True):
                wanted = decode_sample(int(key[1:])).get(name)
                assert np.array_equal(value, wanted) if isinstance(wanted, np.ndarray) else value == wanted


def field_batches(plan, rank, step):
    """(field, (ids, values)) of a batch, without the samples that lack the field."""
    with loader.Loader(plan, rank, 3, **OPTIONS) as batches:
        batch = batches.batch_at(step)
        for name, values in batch.items():
            has = [name in plan.sources[source].view.fields for source, _ in batch.ids]
            yield (
                name,
                tuple([one for one, ok in zip(some, has, strict=True) if ok] for some in (batch.ids, values)),
            )


def test_arrays_of_one_layout_are_not_decoded_one_by_one(root, monkeypatch):
    """After the first batch, which shows the layout, no array of that layout passes a decoder."""
    plan = loader.plan(
        {"d": root.open("d@latest").select("fixed.npy", "ragged.npy")}, seed=1, global_batch=12
    )
    passed = []
    real = loader.run.making.many_samples._decode_payload
    monkeypatch.setattr(
        "loader.run.making.many_samples._decode_payload",
        lambda payload, *rest: passed.append(tuple(payload)) or real(payload, *rest),
    )
    with loader.Loader(plan, 0, 1, **OPTIONS) as batches:
        next(batches)
        assert set(passed) == {("fixed.npy", "ragged.npy")}
        passed.clear()
        for _ in range(4):
            next(batches)
        assert "fixed.npy" not in {field for some in passed for field in some}


def test_batch_over_shards_parts_and_groups_costs_as_many_requests_at_any_step(root, tmp_path):
    """Counted at two sizes and two steps: what a batch costs is independent of both."""
    seen = {}
    for n in (400, 3200):
        with loader.Root(tmp_path / str(n)) as other:
            with other.write("d", part_samples=n // 4) as writer:
                for i in range(n):
                    writer.add(f"{i:06d}", {"x.npy": np.full(600, i, np.int32)})
            plan = loader.plan({"d": other.open("d@latest")}, seed=3, global_batch=8)
            with loader.Loader(plan, 0, 1, **OPTIONS) as batches:
                for step in range(12):
                    batches.batch_at(step)  # indexes and the layout
                for step in (20, 10**6):
                    stats = batches.batch_at(step).stats
                    seen[n, step] = stats["requests"] <= 8, stats["fetched_bytes"]
    assert set(seen.values()) == {(True, 8 * (600 * 4 + 128))}


def test_neighbours_share_a_read(root):
    """A batch of the whole dataset is one read per shard for what goes into rows, and one for the rest."""
    version = root.open("d@latest")
    plan = loader.plan({"d": version.select("fixed.npy", "txt")}, seed=1, global_batch=len(version))
    parts = version.manifest["n_parts"]
    with loader.Loader(plan, 0, 1, **OPTIONS) as batches:
        batches.batch_at(0)  # indexes, and what goes into rows
        assert batches.batch_at(1).stats["requests"] == 2 * parts


@pytest.mark.parametrize(
    ("field", "byte"), [("fixed.npy", -1), ("fixed.npy", 8), ("txt", -1), ("jpg", -1)], ids=str
)
@pytest.mark.parametrize("cured", [True, False])
def test_flipped_bit_is_read_again_and_then_substituted(folder, field, byte, cured, monkeypatch, tmp_path):
    """A bit that flips on the way is cured by the second read; one that stays is substituted; no other row moves."""
    shutil.copytree(folder, tmp_path / "root")
    with loader.Root(tmp_path / "root") as root:
        version = root.open("d@latest")
        view = version.select("scalar.npy", field)
        (ordinal,) = view.ordinals(["k020"]).tolist()
        place = version.address(np.array([ordinal]), [field])[0].fields[field]
        plan = loader.plan({"d": view}, seed=5, global_batch=len(view))
        with loader.Loader(plan, 0, 1, **OPTIONS) as batches:
            wanted = [batches.batch_at(step) for step in (0, 1)]
        shard = tmp_path / "root" / place.path

        def flip(on):
            """In the file, which keeps its times."""
            status = shard.stat()
            data = bytearray(shard.read_bytes())
            data[place.offset + byte % place.nbytes] ^= 64
            with shard.open("r+b") as file:
                file.write(data)
            os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
            flipped["on"] = on

        flipped, real_range = {"on": False}, LocalStore.get_range

        def get_range(self, key, offset, nbytes, etag=None):
            """The second read."""
            if cured and flipped["on"] and key == place.path:
                flip(False)
            return real_range(self, key, offset, nbytes, etag)

        monkeypatch.setattr(LocalStore, "get_range", get_range)
        with loader.Loader(plan, 0, 1, corrupt_budget=1.0, **OPTIONS) as batches:
            for step, right in zip((0, 1), wanted, strict=True):
                if not flipped["on"]:
                    flip(True)
                batch = batches.batch_at(step)
                assert batch.stats["refetched"] >= 1
                if cured:
                    assert batch_contents(batch) == batch_contents(right)
                    continue
                row = right.ids.index(("d", "k020"))
                (entry,) = batch.substitutions
                assert (entry.address.key, entry.substitute) == ("k020", batch.ids[row][1])
                assert entry.stage == "checksum"
                number = int(entry.substitute[1:])
                assert np.array_equal(batch["scalar.npy"][row], number)
                for name in batch:
                    for at in range(len(right.ids)):
                        if at != row:
                            assert np.array_equal(batch[name][at], right[name][at])
                        else:
                            assert np.array_equal(batch[name][at], decode_sample(number)[name])


def test_bucket_is_not_read_twice(root, monkeypatch):
    """Arrays and undecoded fields that came in pieces are gathered, right at once."""
    view = root.open("d@latest").select("fixed.npy", "scalar.npy", "blob.bin", "jpg")
    plan = loader.plan({"d": view}, seed=4, global_batch=16)
    with loader.Loader(plan, 0, 1, **OPTIONS) as batches:
        wanted = [batch_contents(batches.batch_at(step)) for step in range(4)]
    with (
        without_rows(monkeypatch),
        loader.Loader(plan, 0, 1, **OPTIONS) as batches,
        loader.Loader(plan, 0, 1, transform=lambda sample, rng: sample, **OPTIONS) as others,
    ):
        read = [batches.batch_at(step) for step in range(4)]
        one_by_one = [others.batch_at(step) for step in range(4)]
    assert [batch_contents(batch) for batch in read] == wanted
    assert [one.stats["requests"] for one in read] == [one.stats["requests"] for one in one_by_one]
    assert all(type(batch["blob.bin"]) is BytesColumn for batch in read)
    assert all(batch.stats["verify_seconds"] > 0 for batch in read)


def test_shard_that_was_replaced_is_noticed(tmp_path):
    """Also one that was only ever read into rows."""
    with loader.Root(tmp_path / "root") as root:
        with root.write("d", part_samples=10) as writer:
            for i in range(20):
                writer.add(f"k{i}", {"x.npy": np.full(700, i, np.int32)})
        version = writer.version
        plan = loader.plan({"d": version}, seed=1, global_batch=1)
        paths = []
        for step in range(20):
            ordinals = version.select("x.npy").ordinals([key for _, key in plan.batch_ids(step)])
            paths.append(version.address(ordinals, ["x.npy"])[0].fields["x.npy"].path)
        other = next(path for path in paths if path != paths[0])
        first, second = [step for step, path in enumerate(paths) if path == other][:2]
        with loader.Loader(plan, 0, 1, **OPTIONS) as batches:
            batches.batch_at(0)  # shows the layout
            batches.batch_at(first)
            shard = tmp_path / "root" / other
            replaced = shard.with_suffix(".new")
            replaced.write_bytes(shard.read_bytes())
            replaced.replace(shard)
            with pytest.raises(loader.errors.Changed):
                batches.batch_at(second)


def test_shard_that_was_cut_off_costs_what_lay_there(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        with root.write("d") as writer:
            for i in range(20):
                writer.add(f"k{i}", {"x.npy": np.full(700, i, np.int32)})
        version = writer.version
        plan = loader.plan({"d": version}, seed=1, global_batch=20)
        shard = tmp_path / "root" / version.address(np.array([0]), ["x.npy"])[0].fields["x.npy"].path
        last = max(
            range(20), key=lambda i: version.address(np.array([i]), ["x.npy"])[0].fields["x.npy"].offset
        )
        with shard.open("r+b") as file:
            file.truncate(version.address(np.array([last]), ["x.npy"])[0].fields["x.npy"].offset + 1000)
        with loader.Loader(plan, 0, 1, corrupt_budget=1.0, **OPTIONS) as batches:
            for step in range(2):
                batch = batches.batch_at(step)
                (entry,) = batch.substitutions
                assert entry.address.ordinal == last
                assert "the file ends at byte" in entry.error
                for (_, key), row in zip(batch.ids, batch["x.npy"], strict=True):
                    assert (row == int(key[1:])).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.text("ab.", min_size=1, max_size=6), min_size=1, max_size=4, unique=True),
    st.data(),
)
def test_checksums_of_samples_are_those_of_the_bytes(names, data):
    """The digest's CRC per sample, looked up for whole batches, is CRC-32C over the fields' names and checksums."""
    n = data.draw(st.integers(0, 4))
    crcs = st.integers(0, 2**32 - 1)
    columns = {name: np.array(data.draw(st.lists(crcs, min_size=n, max_size=n)), np.int64) for name in names}
    wanted = [
        crc32c(
            b"".join(
                name.encode() + b"\0" + int(columns[name][i]).to_bytes(4, "little") for name in sorted(names)
            )
        )
        for i in range(n)
    ]
    assert sample_crcs(columns).tolist() == wanted
