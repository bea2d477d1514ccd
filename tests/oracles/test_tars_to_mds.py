"""A lab's way in and out: tars of webdataset in a bucket, a training on them there, MDS that streaming reads.

Each verb is a process of its own, killed with SIGKILL at random moments and run again.
"""

import hashlib
import io
import json
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

import loader
from loader.dataset.tables.columns import SOURCE_COLUMNS
from loader.errors import Changed
from loader.storage import open_store
from tests.refusals import refusal

pytestmark = pytest.mark.oracle
N, STEPS = 60, 12
TRAIN = """
import json, os, sys, time
import loader
root, run, state, most = loader.Root(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
view = root.open("photos@2").select("jpg", "cls").where("licence = 'cc0'")
plan = loader.plan({"photos": view}, seed=7, global_batch=8)
plan.save(root)
trail = loader.Trail(root, run, ranks="all", tensors_every=1)
with loader.Loader(plan, workers=1, steps=12, trail=trail) as batches:
    if os.path.exists(state):
        with open(state) as file:
            batches.load_state_dict(json.load(file))
    for number, batch in enumerate(batches, 1):
        batches.note(loss=1 / (1 + batch.step))
        print(batch.step, f"{batch.digest:016x}", flush=True)
        with open(state + ".tmp", "w") as file:
            json.dump(batches.state_dict(), file)
        os.replace(state + ".tmp", state)
        if number == most:
            time.sleep(600)  # until it is killed
"""


@pytest.fixture(params=["s3", pytest.param("ceph", marks=pytest.mark.ceph)])
def bucket(request, monkeypatch):
    """Options of a server, which the environment names to the verbs."""
    options = request.getfixturevalue(request.param)
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret"])
    return options


def verb(*arguments, root, kill_after=None):
    """(exit status, JSON or text) of a verb; status -9 where it was killed."""
    command = [sys.executable, "-m", "penstock", *map(str, arguments), "--root", str(root), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, told = process.communicate(timeout=kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
            out, told = process.communicate()
    return process.returncode, json.loads(out) if out.startswith("{") else out + told


def run_verb(*arguments, root):
    code, said = verb(*arguments, root=root)
    assert code == 0, said
    return said


def run_with_kills(*arguments, root, took, chance):
    """The same, after a first run that was killed at a random moment, and more of them."""
    codes = [verb(*arguments, root=root, kill_after=chance.uniform(0.2, 0.8) * took)[0] for _ in range(8)]
    assert -9 in codes
    return run_verb(*arguments, root=root)


def time_verb(*arguments, root):
    """(what the verb says, seconds that it took)."""
    began = time.monotonic()
    return run_verb(*arguments, root=root), time.monotonic() - began


def train(root, run, state, most=STEPS + 1):
    """step -> digest of a training, killed behind step number `most`."""
    command = [sys.executable, "-c", TRAIN, str(root), run, str(state), str(most)]
    found = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            step, digest = line.split()
            found[int(step)] = digest
            if len(found) == most:
                process.kill()
    assert process.returncode == (-9 if len(found) == most else 0)
    return found


def read(batches, n):
    for _ in range(n):
        next(batches)


def write_files(folder):
    """A photo, a class and a caption for each sample."""
    folder.mkdir()
    draw = np.random.default_rng(22)
    for number in range(N):
        sink = io.BytesIO()
        Image.fromarray(draw.integers(0, 255, (16, 16, 3), np.uint8)).save(sink, "JPEG")
        (folder / f"p{number:02}.jpg").write_bytes(sink.getvalue())
        (folder / f"p{number:02}.cls").write_text(str(number % 5))
        (folder / f"p{number:02}.txt").write_text(f"caption {number} \u00e9")


def content_digest(samples):
    """`penstock digest --full`, from what streaming read: after docs/formats.md and the module's formula alone."""

    def hash_sample(*parts):
        told = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        return int.from_bytes(hashlib.sha256(told).digest(), "little")

    total = 0
    for sample in samples:
        key = sample["key"].encode()
        row = {k: v for k, v in sample["metadata"].items() if k not in SOURCE_COLUMNS and v is not None}
        total += hash_sample(
            b"row", key, json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
        )
        for name in sample.keys() - {"key", "metadata"}:
            value = sample[name]
            data = value.encode() if name == "txt" else bytes.fromhex(value)
            total += hash_sample(b"payload", key, name.encode(), hashlib.sha256(data).digest())
    return f"cf-{total % 2**256:064x}"


def objects(store):
    return {info.key: store.get(info.key).data for info in store.list()}


def test_tars_in_a_bucket_are_trained_on_and_leave_as_mds(tmp_path, peer, bucket):
    chance, root = random.Random(22), tmp_path / "root"
    write_files(tmp_path / "files")
    peer("webdataset", "write", tmp_path / "files", tmp_path / "tars")
    place = open_store("s3://bucket/tars", bucket)
    for path in (tmp_path / "tars").iterdir():
        place.put(path.name, path.read_bytes())
    before = objects(place)

    register = "register", "webdataset", "s3://bucket/tars", "photos"
    alone, took = time_verb(*register, root=tmp_path / "alone")
    found = run_with_kills(*register, root=root, took=took, chance=chance)
    assert (found["id"], found["samples"]) == (alone["id"], N)

    rows = "".join(f"p{number:02},{'cc0' if number % 3 else 'by'}\n" for number in range(N))
    (tmp_path / "licences.csv").write_text("key,licence\n" + rows)
    run_verb(
        "annotate", "photos@1", "licences", "--from", tmp_path / "licences.csv", "--author", "me", root=root
    )

    whole = train(root, "whole", tmp_path / "whole.json")
    assert sorted(whole) == list(range(STEPS))
    killed = train(root, "killed", tmp_path / "killed.json", most=5)
    assert {**killed, **train(root, "killed", tmp_path / "killed.json")} == whole
    look = run_verb("batch", "killed@7", root=root)
    assert f"{look['digest']:016x}" == whole[7]
    assert [proof["name"] for proof in look["proofs"] if proof["proved"]] == [
        "planned",
        "bytes",
        "code",
        "tensors",
    ]

    with loader.Root(root) as opened:
        opened.add_group(
            "photos@2", "means", {"mean.npy": lambda one: np.asarray(one["jpg"]).mean((0, 1))}, inputs=["jpg"]
        )
    assert objects(place) == before

    _, took = time_verb("export", "photos@3", "mds", "s3://bucket/alone", root=root)
    run_with_kills("export", "photos@3", "mds", "s3://bucket/mds", root=root, took=took, chance=chance)
    exported = objects(open_store("s3://bucket/mds", bucket))
    assert exported == objects(open_store("s3://bucket/alone", bucket))
    for name, data in exported.items():
        (tmp_path / "mds" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mds" / name).write_bytes(data)
    theirs = peer("mds", "read", tmp_path / "mds")
    assert content_digest(theirs) == run_verb("digest", "photos@3", "--full", root=root)["digest"]


KILLED = (
    ("register", "webdataset", "s3://bucket/killed", "photos"),
    ("seal", "photos@1"),
    ("digest", "photos@1", "--full"),
    ("adopt", "photos@1"),
    ("import", "webdataset", "s3://bucket/killed", "kept", "--keep-order"),
    ("import", "webdataset", "s3://bucket/killed", "shuffled", "--shuffle"),
    ("export", "shuffled@1", "webdataset", "s3://bucket/killed-{root}"),
)


def test_every_verb_killed_at_random_moments_ends_in_the_same(tmp_path, peer, bucket):
    chance, counts = (
        random.Random(23),
        {"skipped", "same", "new", "sealed", "nbytes", "url"},
    )  # of this run alone
    write_files(tmp_path / "files")
    peer("webdataset", "write", tmp_path / "files", tmp_path / "tars")
    place = open_store("s3://bucket/killed", bucket)
    for path in (tmp_path / "tars").iterdir():
        place.put(path.name, path.read_bytes())
    for words in KILLED:
        alone, took = time_verb(*(word.format(root="no") for word in words), root=tmp_path / "alone")
        given = [word.format(root="yes") for word in words]
        found = run_with_kills(*given, root=tmp_path / "killed", took=took, chance=chance)
        assert {k: v for k, v in found.items() if k not in counts} == {
            k: v for k, v in alone.items() if k not in counts
        }
    mine, theirs = (objects(open_store(str(tmp_path / name))) for name in ("alone", "killed"))
    for folder in ("seals/", "foreign/", "data/"):
        some = {key: data for key, data in mine.items() if key.startswith(folder)}
        assert some.items() <= theirs.items(), folder
    exported = (objects(open_store(f"s3://bucket/killed-{name}", bucket)) for name in ("no", "yes"))
    assert next(exported) == next(exported)


def test_archive_replaced_under_a_training_ends_it(tmp_path, peer, bucket):
    write_files(tmp_path / "files")
    peer("webdataset", "write", tmp_path / "files", tmp_path / "tars")
    place = open_store("s3://bucket/replaced", bucket)
    for path in (tmp_path / "tars").iterdir():
        place.put(path.name, path.read_bytes())
    with loader.Root(tmp_path / "root") as root:
        run_verb("register", "webdataset", "s3://bucket/replaced", "photos", root=tmp_path / "root")
        plan = loader.plan({"photos": root.open("photos@1").select("txt")}, seed=1, global_batch=10)
        with loader.Loader(plan, cache=0) as batches:  # what is kept in memory is not read again
            next(batches)
            data = bytearray(place.get("0001.tar").data)
            data[512:520] = b"CHANGED!"
            place.put("0001.tar", bytes(data))
            with refusal(Changed, what="change token", within="replaced/0001.tar"):
                read(batches, 600)
