"""A version over bytes that stay where they are: what it gives to a training, and what it says when they change."""

import io
import itertools
import json
import os
import tarfile

import google_crc32c
import numpy as np

import loader
from loader.dataset.shards.index import IndexFile, IndexPlace
from loader.dataset.tables import manifest
from loader.errors import Changed, Conflict, FormatTooNew, InvalidRuntime, InvalidStore, ObjectNotFound
from loader.order.digests import delivered_digest, slot_identities
from loader.run.batch.finish import sample_crcs
from loader.storage import open_store
from penstock.cli import main
from penstock.formats.registration.register import register
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.gc.collector import Options, collect
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.verify.root import verify_root
from penstock.upkeep.verify.version import verify
from tests.penstock.formats.builders import tars
from tests.refusals import refusal

N = 120


def make_plan(version, seed=3, batch=16):
    return loader.plan({"p": version.select("txt", "cls")}, seed=seed, global_batch=batch)


def steps(plan, n, **how):
    """(digest, keys, texts) of n batches."""
    out = []
    with loader.Loader(plan, **how) as batches:
        for _, batch in zip(range(n), batches, strict=False):
            keys = [key for _, key in (one for one in batch.ids if one)]
            out.append((batch.digest, keys, [str(one) for one in batch.fields["txt"]]))
    return out


def contents(folder):
    """key -> field -> bytes, as tarfile finds them."""
    samples = {}
    for path in sorted(folder.iterdir()):
        with tarfile.open(path) as archive:
            for member in archive:
                key, _, field = member.name.partition(".")
                if field:
                    samples.setdefault(key, {})[field] = archive.extractfile(member).read()
    return samples


def test_training_reads_what_lies_in_the_archives(root, three):
    version = register(root, "webdataset", three, "photos").version
    assert len(version) == N
    ((_, keys, texts),) = steps(make_plan(version, batch=N), 1)
    assert dict(zip(keys, texts, strict=True)) == {
        key: one["txt"].decode() for key, one in contents(three).items()
    }
    assert keys != sorted(keys)


def test_digest_is_of_what_was_read(root, three):
    """Made here of the archives' bytes, as docs/order.md says."""
    plan = make_plan(register(root, "webdataset", three, "photos").version)
    with loader.Loader(plan) as batches:
        batch = next(iter(batches))
    content = contents(three)
    crcs = {
        field: np.array([google_crc32c.value(content[key][field]) for _, key in batch.ids], np.int64)
        for field in ("txt", "cls")
    }
    slots = plan.slots(0)
    identities = slot_identities(plan, slots)
    assert batch.digest == delivered_digest(0, np.arange(len(slots)), identities, sample_crcs(crcs))
    assert batch.stats["unverified_bytes"] == sum(len(content[key][f]) for _, key in batch.ids for f in crcs)


def test_packed_digest_covers_the_bytes_of_a_second_read(root, tmp_path):
    """A document without a checksum does not decode, is read again, and is delivered with other bytes."""
    folder = tmp_path / "documents"
    members = [tars.JUMPED]
    for i in range(4):
        content = io.BytesIO()
        np.save(content, np.full(8, 256 + i, np.uint16))
        members += tars.sample(f"{i:04}", **{"tok.npy": content.getvalue()})
    tars.fill(folder, {"000.tar": members})
    documents = register(root, "webdataset", folder, "docs").version.select("tok.npy")
    pack = loader.pack("tok.npy", 16, pad_id=0)
    plan = loader.plan({"docs": documents}, seed=1, global_batch=2, pack=pack)

    def read_digest(decoder):
        with loader.Loader(plan, 0, 1, workers=0, framework="numpy", decode={"tok.npy": decoder}) as batches:
            batch = next(batches)
        return batch.digest, batch.stats.get("refetched", 0)

    def tokens(data, rng):
        return np.load(io.BytesIO(data))

    archive = folder / "000.tar"
    good = archive.read_bytes()
    values = np.full(8, 258, np.uint16).tobytes()
    assert good.count(values) == 1
    expected, _ = read_digest(tokens)

    def rewrite(content):
        with archive.open("r+b") as file:  # in place, as a disk that returns other bytes
            file.write(content)
        tars.set_time(archive)

    def tokens_or_repair(data, rng):
        values = tokens(data, rng)
        if 0 in values:
            rewrite(good)
            raise ValueError("token 0")
        return values

    rewrite(good.replace(values, bytes(16)))
    assert read_digest(tokens_or_repair) == (expected, 1)


def test_sample_is_explained_by_its_object(root, three):
    plan = make_plan(register(root, "webdataset", three, "photos").version)
    explained = loader.explain(plan, 0)
    assert {one.provenance["raw_uri"] for one in explained} == {f"{three}/{k:03}.tar" for k in range(3)}
    assert "crc32c not known" in str(explained[0])
    content = contents(three)
    for one in explained:
        at = one.address.fields["txt"]
        data = (three / one.provenance["raw_key"]).read_bytes()
        assert data[at.offset : at.offset + at.nbytes] == content[one.address.key]["txt"]


def test_batches_are_the_same_however_they_are_read(root, three):
    """By any workers, by two ranks, from a state on, and looked back at."""
    plan = make_plan(register(root, "webdataset", three, "photos").version)
    whole = steps(plan, 9)
    for how in (
        {"workers": 0},
        {"workers": 2, "executor": "threads"},
        {"workers": 2, "executor": "processes"},
    ):
        assert steps(plan, 9, **how) == whole
    ranks = [steps(plan, 9, rank=rank, world_size=2) for rank in range(2)]
    for (digest, keys, _), *parts in zip(whole, *ranks, strict=True):
        assert digest == sum(part[0] for part in parts) % 2**64
        assert keys == [key for part in parts for key in part[1][: len(keys)]]
    with loader.Loader(plan) as batches:
        list(itertools.islice(batches, 4))
        state = batches.state_dict()
    with loader.Loader(plan) as batches:
        batches.load_state_dict(json.loads(json.dumps(state)))
        assert [batch.digest for batch in itertools.islice(batches, 5)] == [one[0] for one in whole[4:]]
    replay = loader.Replay(plan)
    assert [replay.digest(step) for step in range(3)] == [one[0] for one in whole[:3]]
    assert [replay.batch(step).digest for step in range(3)] == [one[0] for one in whole[:3]]


def test_predicate_selects_by_what_is_known(root, three):
    version = register(root, "webdataset", three, "photos").version
    assert len(version.where("raw_key = '001.tar'")) == 40
    root.annotate("photos", "score", {"0/0001": {"score": 1.5}, "1/0002": {"score": 2.5}}, author="a")
    assert len(root.open("photos").where("score > 1")) == 2


def test_place_that_moved_is_named_once_more(root, three, tmp_path):
    version = register(root, "webdataset", three, "photos").version
    three.rename(tmp_path / "moved")
    with refusal(ObjectNotFound, what="registered object", within="/000.tar)"):
        steps(make_plan(root.open("photos")), 1)
    assert register(root, "webdataset", tmp_path / "moved", "photos").version.id == version.id
    (place,) = (tmp_path / "root/places").iterdir()
    urls = [json.loads(path.read_text())["url"] for path in sorted(place.iterdir())]
    assert urls == [str(three), str(tmp_path / "moved")]
    assert len(steps(make_plan(root.open("photos")), 1)) == 1


def replace_archive(path, tars, members):
    """Write an archive again, as another one."""
    path.write_bytes(tars.tar_bytes(members))


def test_object_that_was_replaced_is_named(root, three):
    version = register(root, "webdataset", three, "photos").version
    replace_archive(three / "001.tar", tars, tars.number_samples(1, 60))
    with refusal(Changed, what="size", within="/tars/001.tar", given=133120, accepted=153600):
        steps(make_plan(version), 9)
    replace_archive(
        three / "001.tar", tars, [tars.JUMPED, *tars.number_samples(1, 40)]
    )  # the same size, another time
    with refusal(Changed, what="time", within="/tars/001.tar", accepted=1700000000000000):
        steps(make_plan(root.open("photos")), 9)


def test_object_that_is_replaced_while_a_training_reads_it_is_named(root, three):
    version = register(root, "webdataset", three, "photos").version
    with loader.Loader(make_plan(version), workers=0) as batches:
        steps_of = iter(batches)
        next(steps_of)
        replace_archive(three / "001.tar", tars, tars.number_samples(1, 60))
        with refusal(Changed, what="size", within="/tars/001.tar", given=133120, accepted=153600):
            list(itertools.islice(steps_of, 8))


def test_registering_again_takes_what_changed(root, three):
    first = register(root, "webdataset", three, "photos").version
    tars.fill(three, {"003.tar": tars.number_samples(3, 10), "001.tar": tars.number_samples(1, 50)})
    (three / "000.tar").unlink()
    found = register(root, "webdataset", three, "photos")
    assert (found.new, found.replaced, found.missing, found.same) == (1, 1, 1, 1)
    assert found.version.number == 2
    assert found.version.manifest["parent"] == first.id
    keys = set(found.version.samples().collect()["key"].to_list())
    expected = {f"{k}/{i:04}" for k, n in ((1, 50), (2, 40), (3, 10)) for i in range(n)}
    assert keys == expected
    assert len(steps(make_plan(found.version), 6)) == 6
    assert register(root, "webdataset", three, "photos").version.id == found.version.id
    assert list(verify(root, "photos", full=True).problems) == []


def test_registering_again_what_did_not_change_reads_no_keys(root, three, tmp_path):
    version = register(root, "webdataset", three, "photos").version
    for table in (tmp_path / "root").rglob("samples-keys-*"):
        table.unlink()
    again = register(root, "webdataset", three, "photos")
    assert (again.version.id, again.same, again.new, again.missing) == (version.id, 3, 0, 0)


def test_second_registration_drops_samples_of_deleted_objects(root, three):
    register(root, "webdataset", three, "photos")
    (three / "000.tar").unlink()
    found = register(root, "webdataset", three, "photos")
    assert (found.missing, len(found.version)) == (1, 80)
    assert register(root, "webdataset", three, "photos").version.id == found.version.id


def test_sample_that_somebody_excluded_does_not_come_back(root, three):
    register(root, "webdataset", three, "photos")
    root.exclude("photos", ["0/0001"], reason="blurred")
    tars.fill(three, {"003.tar": tars.number_samples(3, 10)})
    assert len(register(root, "webdataset", three, "photos").version) == N + 10 - 1


def test_dataset_of_another_place_is_refused(root, three, tmp_path):
    register(root, "webdataset", three, "photos")
    tars.fill(tmp_path / "others", {"x.tar": tars.number_samples(9, 3)})
    with refusal(
        Conflict, what="objects", where=f"{tmp_path}/others", accepted="one of the 3 objects of photos@1"
    ):
        register(root, "webdataset", tmp_path / "others", "photos")
    with refusal(
        Conflict,
        what="options",
        where="photos@1",
        given="{'format': 'webdataset', 'without': ['cls']}",
        accepted="{'format': 'webdataset', 'without': []}",
    ):
        register(root, "webdataset", three, "photos", without=["cls"])
    with root.write("own") as writer:
        writer.add("a", {"txt": "x"})
    with refusal(Conflict, what="samples", where="own@1", given="written", accepted="registered"):
        register(root, "webdataset", three, "own")


def test_place_and_the_root_lie_apart(root, three):
    with refusal(InvalidStore, what="locations", given=[str(three), f"{three}/root"]):
        register(loader.Root(three / "root"), "webdataset", three, "photos")


def test_older_readers_refuse_the_version_and_not_the_root(root, three, monkeypatch):
    with root.write("own") as writer:
        writer.add("a", {"txt": "x"})
    register(root, "webdataset", three, "photos")
    assert (root.open("own").manifest["format"], root.open("photos").manifest["format"]) == (1, 3)
    monkeypatch.setattr(manifest, "NEWEST_FORMAT", 2)
    old = loader.Root(root.url)
    assert len(old.open("own")) == 1
    with refusal(FormatTooNew, what="format", given=3, accepted=2):
        old.open("photos")


def test_page_cannot_be_proven(root, three):
    register(root, "webdataset", three, "photos")
    version = loader.Root(root.url, verify="sha256").open("photos")
    with refusal(InvalidRuntime, what="verify", within="000.tar", given="sha256"):
        steps(make_plan(version), 1)


def test_verify_asks_every_object_and_says_what_it_cannot_prove(root, three, capsys):
    register(root, "webdataset", three, "photos")
    whole = verify(root, "photos", full=True)
    assert whole.problems == []
    assert whole.unverified_nbytes == sum(
        nbytes
        for group in root.open("photos").manifest["groups"].values()
        for nbytes in group["field_nbytes"].values()
    )
    assert verify(root, "photos").problems == []
    assert main(["verify", "photos", "--full", "--root", root.url]) == 0
    assert "have no known checksum: read, not verified" in capsys.readouterr().out
    replace_archive(three / "001.tar", tars, tars.number_samples(1, 60))
    (three / "002.tar").unlink()
    for full in (False, True):
        told = [one.what for one in verify(root, "photos", full=full).problems]
        assert len(told) == 2
        assert "001.tar has 133,120 bytes, registered were 153,600" in told[0]
        assert "002.tar is gone" in told[1]
    report = verify_root(root, full=False)
    assert len(report.problems) == 2
    assert report.foreign == []


def test_field_that_somebody_adds_lies_in_the_root(root, three):
    register(root, "webdataset", three, "photos")
    root.add_group("photos", "sizes", {"size.npy": lambda one: np.int64(len(one["txt"]))})
    version = root.open("photos")
    plan = loader.plan({"p": version.select("txt", "size.npy")}, seed=1, global_batch=N)
    with loader.Loader(plan) as batches:
        batch = next(iter(batches))
    assert [int(one) for one in batch.fields["size.npy"]] == [len(one) for one in batch.fields["txt"]]
    assert verify(root, "photos", full=True).problems == []


def listing(folder):
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_collector_leaves_the_place_alone(root, three):
    before = listing(three)
    register(root, "webdataset", three, "photos")
    with root.write("own") as writer:
        writer.add("a", {"txt": "x"})
    root.retire("photos@1", reason="old")
    root.close()
    again = loader.Root(root.url)
    (txn,) = (three.parent / "root/data").glob("*/registered")
    for hour in range(0, 1000, 200):
        collect(again, Options(name="c"), apply=True, now_us=hour * 3_600_000_000 + 10**15)
    assert not listing(txn)
    assert listing(three) == before


def test_verb_registers_and_says_what_it_did(root, three, capsys):
    assert main(["register", "webdataset", str(three), "photos", "--root", root.url]) == 0
    out = capsys.readouterr().out
    assert "photos@1" in out
    assert f"120 samples with cls, txt, whose bytes stay at {three}" in out
    assert "3 objects: 3 added, 0 changed, 0 removed, 0 unchanged (0 other files hold no" in out
    assert main(["register", "webdataset", str(three), "photos", "--root", root.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] == 3
    os.unlink(three / "002.tar")
    assert main(["verify", "photos", "--root", root.url]) == 1


def test_mirror_reads_the_same_place(root, three, tmp_path):
    version = register(root, "webdataset", three, "photos").version
    mirror = str(tmp_path / "mirror")
    migrate(root, open_store(mirror), Pace())
    other = loader.Root(mirror)
    assert other.open("photos").id == version.id
    assert steps(make_plan(other.open("photos")), 3) == steps(make_plan(version), 3)
    assert not list((tmp_path / "mirror").glob("foreign/*"))
    assert verify(other, "photos", full=True).problems == []


def test_sample_that_was_taken_down_is_in_no_index(root, three, capsys):
    before = listing(three)
    register(root, "webdataset", three, "photos")
    told = ["--reason", "ticket 1", "--by", "desk", "--root", root.url]
    assert main(["takedown", "request", "--dataset", "photos", "--sample", "1/0003", *told]) == 0
    assert main(["takedown", "run", "3", "--apply", "--root", root.url]) in (0, 1)
    capsys.readouterr()
    version = loader.Root(root.url).open("photos")
    assert len(version) == N - 1
    index = IndexFile(version.store, IndexPlace.of(version.parts.shard("media", 1))).read_group(0)
    assert "1/0003" not in index.keys
    assert index.places[3].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert index.places[4].tolist() != [[0, 0, 0], [0, 0, 0]]
    assert verify(loader.Root(root.url), "photos", full=True).problems == []
    assert main(["takedown", "prove", "3", "--root", root.url]) == 1
    *places, last = capsys.readouterr().out.splitlines()
    clean = sum(line.startswith("clean: ") for line in places)
    left = sum(line.startswith("not clean: ") for line in places)
    assert clean + left == len(places)
    assert last == f"takedown 3: incomplete, {len(places)} places: {clean} clean, {left} not clean"
    assert clean > 3
    assert left
    assert listing(three) == before
