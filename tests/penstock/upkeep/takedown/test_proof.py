"""Proofs: complete only when every place is clean, and looked at again by a script that knows nothing of penstock."""

import copy
import io
import json
import os
import shutil
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.cache.pages import former_page_name, make_place, object_prefix
from loader.dataset.log.denies import Target
from loader.errors import Corrupt, InvalidRuntime
from penstock.cli import main
from penstock.denied.record import read_record
from penstock.upkeep.takedown.remains import cache_places, delete_noncurrent, purge_cache
from tests.refusals import refusal
from tests.servers.patience import until

SECRET = "ZQALICEZQ"


@pytest.fixture
def place(tmp_path):
    return tmp_path / "root"


@pytest.fixture
def swept_takedown(kit, place):
    """(root, n): a root on a disk with a takedown that was run and swept."""
    root = loader.Root(place)
    kit.write(root, "photos", {f"{SECRET}/one": SECRET, "p2": "bob", "p3": "carol"}, part_samples=2)
    kit.write(root, "clips", {"c1": SECRET, "c2": "zed"})
    n = kit.deny(root)
    kit.take_down(root, n)
    kit.sweep(root)
    return root, n


def unclean(proof):
    return [place for place in proof["places"] if not place["clean"]]


def test_proof_names_nobody_and_is_looked_at_again(kit, swept_takedown, place, tmp_path):
    root, n = swept_takedown
    proof = kit.prove(root, n)
    assert proof["result"] == "complete", unclean(proof)
    assert SECRET not in json.dumps(proof)
    assert {one["check"] for one in proof["places"]} == {"retired", "absent", "zeros", "scan"}
    assert all(one["evidence"] for one in proof["places"])
    assert kit.recheck(proof, place, tmp_path) == (0, "complete\n")
    assert kit.recheck(proof, f"file://{place}", tmp_path) == (0, "complete\n")


def first(proof, check):
    return next(one for one in proof["places"] if one["check"] == check)


def an_old_shard_comes_back(root, proof):
    root.store.put(first(proof, "absent")["path"], b"x" * 10)


def bytes_come_back(root, proof):
    zeros = first(proof, "zeros")
    data = bytearray(root.store.get(zeros["path"]).data)
    at, n = next(span for span in zeros["ranges"] if span[1])
    data[at + n - 1] = 1
    root.store.put(zeros["path"], bytes(data))


def a_table_names_the_subject(root, proof):
    sink = io.BytesIO()
    pq.write_table(pa.table({"reason": [f"near {SECRET}, it is said"]}), sink)
    root.store.put("tables/photos/notes/1/x.parquet", sink.getvalue())


def a_table_names_its_key(root, proof):
    sink = io.BytesIO()
    pq.write_table(pa.table({"in_id": [f"{SECRET}/one"]}), sink)
    root.store.put("tables/photos/lineage/1/x.parquet", sink.getvalue())


def a_record_names_its_key(root, proof):
    root.store.put(
        "stages/photos/units/1/000000000001.json", json.dumps({"exclude": {"source/c1": 1}}).encode()
    )
    root.store.put(
        "stages/clips/units/1/000000000001.json", json.dumps({"exclude": {"source/c1": 1}}).encode()
    )


def a_member_has_its_key(root, proof):
    import tarfile

    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(f"{SECRET}/one.a.txt"))
    txn = next(iter(root.state.txns))
    root.store.put(f"data/{txn}/0000/media-x.tar", sink.getvalue())


PLANTED = (
    an_old_shard_comes_back,
    bytes_come_back,
    a_table_names_the_subject,
    a_table_names_its_key,
    a_record_names_its_key,
    a_member_has_its_key,
)


def test_leftovers_are_found_by_both(kit, swept_takedown, place, tmp_path):
    """Of all that was planted a proof made now tells, and the script that holds the earlier proof against the root."""
    root, n = swept_takedown
    proof = kit.prove(root, n)
    for plant in PLANTED:
        plant(root, proof)
    status, said = kit.recheck(proof, place, tmp_path)
    assert (status, said.count("\n")) == (1, 1 + len(PLANTED)), said
    assert len(unclean(kit.prove(root, n))) == len(PLANTED)


@pytest.mark.server
def test_each_leftover_is_found_alone(kit, swept_takedown, place, tmp_path):
    root, n = swept_takedown
    proof = kit.prove(root, n)
    for plant in PLANTED:
        shutil.copytree(place, tmp_path / plant.__name__)
        plant(loader.Root(tmp_path / plant.__name__), proof)
        status, said = kit.recheck(proof, tmp_path / plant.__name__, tmp_path)
        assert (status, said.count("\n")) == (1, 2), said


def test_next_run_finds_leftovers(kit, swept_takedown):
    root, n = swept_takedown
    a_member_has_its_key(root, None)
    assert kit.take_down(root, n).waiting == 1
    assert [one["what"] for one in unclean(kit.prove(root, n))] == [
        "shard without an index that no version names"
    ]


def test_what_is_out_of_reach_makes_it_incomplete(kit, swept_takedown, place, tmp_path):
    root, n = swept_takedown
    known = ["backups until 2026-12-24"]
    proof = kit.prove(root, n, known=known)
    assert (proof["result"], [one["what"] for one in unclean(proof)]) == ("incomplete", known)
    assert kit.recheck(proof, place, tmp_path) == (1, "incomplete\n")
    mirror = tmp_path / "mirror"
    shutil.copytree(place, mirror)
    assert kit.prove(root, n, mirrors=[str(mirror)])["result"] == "complete"
    an_old_shard_comes_back(loader.Root(mirror), proof)
    assert "still there" in unclean(kit.prove(root, n, mirrors=[str(mirror)]))[0]["why"]
    for version, run in (("clips@1", "a"), ("clips@2", "b")):
        marker = json.dumps({"versions": [{"id": root.record(version, retired=True).id}]})
        root.store.put(f"checkpoints/{run}/steps/000000000001.json", marker.encode())
    (left,) = unclean(kit.prove(root, n))
    assert left["path"] == "checkpoints/a/steps/000000000001.json"
    root.store.delete_many([left["path"]])
    cache = tmp_path / "cache"
    make_place(str(cache), shared=False)
    near = cache / "near" / left["path"]
    near.parent.mkdir(parents=True)
    near.write_text(json.dumps({"versions": [{"id": root.record("clips@1", retired=True).id}]}))
    (left,) = unclean(kit.prove(root, n, caches=[str(cache)]))
    assert left["path"] == str(near)


def test_before_the_sweep_it_is_incomplete(kit, place):
    root = loader.Root(place)
    kit.write(root, "photos", {"p1-long": SECRET, "p2": "bob"})
    n = kit.deny(root)
    requested = kit.prove(root, n)
    assert {one["check"] for one in unclean(requested)} >= {"retired", "scan"}
    kit.take_down(root, n)
    proof = kit.prove(root, n)
    assert {one["check"] for one in unclean(proof)} == {"absent"}
    assert "still there" in unclean(proof)[0]["why"]


def test_raw_objects_at_their_source(kit, place, tmp_path, capsys):
    source = tmp_path / "landing" / "a.jpg"
    source.parent.mkdir()
    source.write_bytes(b"raw")
    root = loader.Root(place)
    with root.write("photos") as writer:
        for key, uri in (("p1", source.as_posix()), ("p2", f"{source.as_posix()}.other")):
            writer.add(
                key, {"txt": key}, source={"raw_uri": uri, "subject": SECRET if key == "p1" else "bob"}
            )
    n = kit.deny(root)
    assert main(["takedown", "run", str(n), "--root", str(place), "--delete-raw"]) == 2
    assert main(["takedown", "run", str(n), "--root", str(place)]) == 0
    assert source.as_posix() in capsys.readouterr().out
    shutil.copytree(place, tmp_path / "kept")
    kept = loader.Root(tmp_path / "kept")
    assert kit.take_down(kept, n).uris == [source.as_posix()]
    kit.sweep(kept)
    (left,) = unclean(kit.prove(kept, n))
    assert left["check"] == "raw"
    assert "a.jpg" not in json.dumps(left)
    capsys.readouterr()
    below = ["--raw-below", source.parent.as_posix()]
    assert main(["takedown", "run", "--root", str(place), "--apply", "--delete-raw", *below]) == 0
    assert f"raw object, deleted at its source: {source.as_posix()}" in capsys.readouterr().out
    assert not source.exists()
    kit.sweep(root)
    assert kit.prove(root, n)["result"] == "complete"


@pytest.mark.server
def test_pages_in_node_caches_are_purged(kit, tmp_path, s3):
    folder = tmp_path / "cache"

    def pages():
        return {name for _, _, names in os.walk(folder / "pages") for name in names}

    with loader.Root("s3://bucket/takedown-cache", options=s3) as root:
        with root.write("photos", part_samples=1) as writer:
            for key, who in (("p1", SECRET), ("p2", "bob")):
                writer.add(key, {"bin": who.encode() * 9000}, source={"subject": who})
        plan = loader.plan({"d": root.open("photos").select("bin")}, seed=0, global_batch=2)
        cache = loader.NodeCache(path=folder, page_bytes=4096)
        with loader.Loader(plan, steps=8, cache=cache) as batches:
            for batch in batches:
                assert len(batch.ids) == 2
            until(lambda: len(pages()) == 29)  # of samples of 81 kB and 27 kB, read ahead, and of two indexes
        version = root.open("photos")
        shards = version.parts.shard_contents(version.group_of("bin"))
        path, sha256, _ = max(shards, key=lambda shard: shard[2])  # the sample of 81 kB
        index = object_prefix(f"{version.parts.find_shard(path)['index_footer_sha256']} index")
        former = former_page_name(sha256, 4096, 3)  # of an earlier release
        (folder / "pages" / former[:2]).mkdir(exist_ok=True)
        (folder / "pages" / former[:2] / former).write_bytes(bytes(4112))
        before = pages()
        n = kit.deny(root)
        kit.take_down(root, n)
        record = read_record(root.store, n)
        (place,) = cache_places(record, [str(folder)], root)
        assert not place["clean"]
        purged = purge_cache(str(folder), record, root)
        assert purged == 22  # of 81 kB, of its index, and the former one
        assert [name.startswith(index) for name in before].count(True) == 1
        assert not any(name.startswith(index) for name in pages())
        assert len(pages()) == len(before) - purged > 0
        (place,) = cache_places(record, [str(folder)], root)
        assert place["clean"]
        with refusal(InvalidRuntime, where=tmp_path, accepted="a node cache"):
            purge_cache(str(tmp_path), record, root)


@pytest.mark.server
def test_what_a_versioned_bucket_keeps(kit, s3):
    """Noncurrent versions and unfinished uploads make it incomplete, a run deletes them, but for what a lock keeps."""
    import boto3

    names = ("aws_access_key_id", "aws_secret_access_key")
    keys = dict(zip(names, (s3["key"], s3["secret"]), strict=True))
    client = boto3.client("s3", endpoint_url=s3["endpoint_url"], region_name="us-east-1", **keys)
    client.create_bucket(Bucket="versioned", ObjectLockEnabledForBucket=True)
    with loader.Root("s3://versioned/root", options=s3) as root:
        kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
        n = kit.deny(root)
        kit.take_down(root, n)
        paths = read_record(root.store, n).paths
        shard = next(path for path in paths if path.endswith(".tar"))
        client.create_multipart_upload(Bucket="versioned", Key=f"root/{shard}")
        client.put_object_retention(
            Bucket="versioned",
            Key=f"root/{shard}",
            Retention={"Mode": "COMPLIANCE", "RetainUntilDate": datetime(2030, 1, 2, tzinfo=UTC)},
        )
        kit.sweep(root)
        left = unclean(kit.prove(root, n, s3=client))
        assert {one["check"] for one in left} == {"noncurrent"}
        assert {one["path"] for one in left} == set(paths)
        delete_noncurrent(root.store, paths, client)
        (locked,) = unclean(kit.prove(root, n, s3=client))
        assert (locked["path"], locked["why"]) == (shard, "an object lock keeps it until 2030-01-02")
        assert [one.key for one in root.store.list("data/") if one.key in paths] == []
    client.close()


def test_command_line(kit, place, tmp_path, capsys):
    root = loader.Root(place)
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})

    def penstock(*arguments):
        status = main(["takedown", *arguments, "--root", str(place), "--json"])
        return status, json.loads(capsys.readouterr().out)

    said = ("--reason", "ticket 1", "--by", "desk")
    assert penstock("request", "--sample", "p1", *said)[0] == 2
    assert penstock("request", *said)[0] == 2
    assert penstock("request", "--subject", SECRET, "--dataset", "photo", *said)[0] == 2
    assert penstock("request", "--subject", "\udcff", *said)[0] == 2
    assert penstock("ls") == (0, [])
    status, body = penstock("request", "--subject", SECRET, "--sample", "p1", "--dataset", "photos", *said)
    assert (status, body["scope"]) == (0, "sample subject")
    n = body["takedown"]
    assert penstock("ls")[1] == [
        {"takedown": n, "scope": "sample subject", "reason": "ticket 1", "by": "desk"}
    ]
    assert penstock("run")[1][0]["samples"] == {"photos": 1}
    assert penstock("prove", str(n))[0] == 1
    assert penstock("run", str(n), "--apply")[1][0]["new"] == ["photos@2"]
    kit.sweep(root)
    out = tmp_path / "proof.json"
    assert penstock("prove", str(n), "--out", str(out))[1]["result"] == "complete"
    assert json.loads(out.read_text())["result"] == "complete"
    assert penstock("prove", str(n), "--out", str(tmp_path))[0] == 2
    assert penstock("prove", "77")[0] == 2


def test_script_tells_names_from_words(kit, place, tmp_path):
    """What somebody else is called too, a label, a field and a line of another dataset's ledger are not names."""
    root = loader.Root(place)
    with root.write("clips") as writer:
        for key, label in (("video7", "x"), ("video7/2", "video7"), ("video8", "c")):
            writer.add(key, {"txt": key}, {"label": label}, {"raw_key": key[:6], "subject": "zed"})
    theirs = kit.write(root, "photos", {"video7": "zed"})
    line = {"version_id": theirs.id, "key": "video7", "substitute": "", "error": "of video7"}
    root.store.put("ledgers/a/0-of-1/0-0-0.jsonl", json.dumps(line).encode() + b"\n")
    record = {"partition": "video7", "reason": "near video7-b", "body": {"kind": "video7"}}
    root.store.put("stages/clips/units/b/000000000001.json", json.dumps(record).encode())
    n = kit.deny(root, *(Target(kind="sample", value=f"video{i}", dataset="clips") for i in (7, 8)))
    kit.take_down(root, n)
    kit.sweep(root)
    proof = kit.prove(root, n)
    assert proof["result"] == "complete", unclean(proof)
    assert kit.recheck(proof, place, tmp_path) == (0, "complete\n")
    record["reason"] = "near video8.jpg"
    root.store.put("stages/clips/units/b/000000000002.json", json.dumps(record).encode())
    assert kit.recheck(proof, place, tmp_path)[0] == 1


@pytest.mark.parametrize("data", [b"{bad", b"[1, 2]"])
def test_record_that_is_damaged_is_named(kit, root, data):
    """By the run; the proof says that it could not look."""
    kit.write(root, "photos", {"p1": SECRET, "p2": "bob"})
    path = "stages/photos/units/b/000000000001.json"
    root.store.put(path, data)
    n = kit.deny(root)
    with refusal(Corrupt, what="JSON object", where=f"{root.url}/{path}"):
        kit.take_down(root, n)
    (left,) = (one for one in unclean(kit.prove(root, n)) if one.get("path") == path)
    assert left["why"] == "it could not be read: Corrupt"


def test_sample_of_one_dataset_only(kit, place):
    root = loader.Root(place)
    for dataset in ("photos", "clips"):
        kit.write(root, dataset, {"k1": "bob", "k2": "carol"})
    n = kit.deny(root, Target(kind="sample", value="k1", dataset="clips"))
    assert kit.take_down(root, n).samples == {"clips": 1}
    assert sorted(kit.content(root.open("photos"))) == ["k1", "k2"]
    assert sorted(kit.content(root.open("clips"))) == ["k2"]
    kit.sweep(root)
    proof = kit.prove(root, n)
    assert proof["result"] == "complete", unclean(proof)
    assert kit.recheck(copy.deepcopy(proof), place, place.parent) == (0, "complete\n")
