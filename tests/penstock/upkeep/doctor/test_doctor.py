"""`penstock doctor URL`: what it prints, that it leaves nothing, and how it ends where nothing can be tried."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import loader
from loader.storage import open_store
from penstock.upkeep.doctor import examine, store_probes
from tests.servers.patience import until
from tests.servers.processes import python

EVERYWHERE = [
    *("root", "writing", "create-only", "creates at once", "read after write", "delete", "etags", "ranges"),
    *("checksums", "copies", "listing"),
]
DISK = ["file system", "space", "links", "fsync", "renames", "names", "clock"]
BUCKET = [
    *(
        "clock",
        "region",
        "encryption",
        "requester pays",
        "versioning",
        "object lock",
        "lifecycle",
        "lifecycle",
    ),
    *("uploads", "tiers"),
]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Nothing of what is tried is left out; there is less of it."""
    monkeypatch.setattr(store_probes, "PARTS_BYTES", 2**20 + 1)
    monkeypatch.setattr(examine, "MANY", 40)


def options(given):
    return [word for name, value in given.items() for word in ("--option", f"{name}={value}")]


def checks(body, *levels):
    return [one["check"] for one in body["findings"] if not levels or one["level"] in levels]


def files(folder: Path):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_folder_that_is_not_there(cli, tmp_path):
    run = cli("doctor", tmp_path / "a" / "root", "--json")
    assert (run.code, run.err) == (0, "")
    assert sorted(checks(run.json)) == sorted(EVERYWHERE + DISK)
    assert checks(run.json, "fail") == []
    assert run.json["url"] == str(tmp_path / "a" / "root")
    assert files(tmp_path) == []


def test_root_is_left_as_it_was(cli, tmp_path):
    root = loader.Root(tmp_path)
    with root.write("d") as writer:
        writer.add("k", {"cls": 1})
    root.close()
    before = files(tmp_path)
    run = cli("doctor", tmp_path, "--quick")
    assert run.code == 0
    assert "a root is there" in run.out
    assert "requests/s" not in run.out
    assert files(tmp_path) == before


def test_memory(cli):
    run = cli("doctor", "memory://doctor/root", "--json")
    assert (run.code, checks(run.json)) == (0, EVERYWHERE)
    assert list(open_store("memory://doctor").list("")) == []


def test_bucket(cli, s3, bucket):
    client, name = bucket
    run = cli("doctor", f"s3://{name}/a/root", "--json", *options(s3))
    assert (run.code, run.err) == (0, "")
    assert sorted(checks(run.json)) == sorted(EVERYWHERE + BUCKET)
    assert checks(run.json, "warn", "note", "fail") == ["lifecycle"]
    assert "PLANTED" not in run.out
    assert client.list_objects_v2(Bucket=name)["KeyCount"] == 0


def test_bucket_of_googles(cli, gcs):
    """A server of the tests' own, which knows objects, and nothing of a bucket's settings."""
    run = cli("doctor", "gs://bucket/doctor/root", "--quick", "--json", *options(gcs))
    assert (run.code, run.err) == (0, "")
    assert set(EVERYWHERE) <= set(checks(run.json, "ok"))
    assert "PLANTED" not in run.out


@pytest.mark.server
def test_container_of_azures(cli, azure):
    run = cli("doctor", "az://bucket/doctor/root", "--quick", "--json", *options(azure))
    assert (run.code, run.err) == (0, "")
    assert sorted(checks(run.json, "ok")) == sorted(
        [*EVERYWHERE, "clock", "object lock", "versioning", "versioning", "tiers"]
    )
    assert checks(run.json, "note") == ["lifecycle"]
    assert azure["account_key"] not in run.out


def test_text(cli, s3, bucket):
    _, name = bucket
    lines = cli("doctor", f"s3://{name}/root", *options(s3)).out.splitlines()
    assert lines[0] == f"penstock doctor s3://{name}/root"
    told = lines[2 : lines.index("", 2)]
    assert all(line[:6] in ("ok    ", "note  ", "warn  ", "fail  ", "      ") for line in told)
    assert lines[-1] == "20 ok, 0 note, 1 warn, 0 fail: fit for a root"
    assert max(map(len, lines)) <= 120


def test_as_a_process(penstock, tmp_path):
    run = penstock("doctor", tmp_path / "root", "--quick")
    assert (run.code, run.err) == (0, "")
    assert files(tmp_path) == []


def test_lying_store_fails(cli, gateway, s3, bucket):
    gateway.lie = "replaces"
    run = cli("doctor", f"s3://{bucket[1]}/root", "--quick", "--json", *options(s3))
    assert run.code == 1
    assert checks(run.json, "fail") == ["create-only", "creates at once"]
    assert run.json["failed"] is True


def test_store_without_atomic_creates_fails(cli):
    run = cli("doctor", "memory://plain", "--option", "fsspec={}", "--quick", "--json")
    assert (run.code, checks(run.json, "fail")) == (1, ["create-only"])


@pytest.mark.parametrize(
    ("url", "changed", "told"),
    [
        ("s3://no-such-bucket/root", {}, "NoSuchBucket"),
        ("s3://doctor/root", {"endpoint_url": "http://127.0.0.1:1", "retry_deadline_s": 0}, "gave up"),
    ],
    ids=["bucket", "endpoint"],
)
def test_where_nobody_answers_nothing_else_is_tried(cli, s3, url, changed, told):
    run = cli("doctor", url, "--json", *options({**s3, **changed}))
    assert run.code == 1
    assert checks(run.json)[-1] == "root"
    assert set(checks(run.json)) == {"clock", "root"}
    assert told in run.json["findings"][-1]["what"]


def test_place_that_cannot_be_written(cli):
    run = cli("doctor", "/proc/penstock", "--json")
    assert (run.code, checks(run.json), checks(run.json, "fail")) == (1, ["root", "writing"], ["writing"])


def test_things_of_others_are_left_alone(cli, tmp_path):
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    run = cli("doctor", tmp_path, "--quick", "--json")
    assert (run.code, checks(run.json, "warn", "fail")[0]) == (0, "root")
    assert files(tmp_path) == ["holiday.jpg"]


FULL = """
import resource, signal, sys
from penstock.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
sys.exit(main(["doctor", "memory://doctor/full", "--quick", "--json"]))
"""


def test_scratch_that_is_full_is_no_fault_of_the_store(tmp_path):
    """A limit on the size of files stands for the disk, in a process of its own."""
    run = python("-c", FULL, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    (one,) = [one for one in found["findings"] if one["level"] == "warn"]
    assert one["check"] == "checksums"
    assert f"not checked: temporary space {tmp_path}" in one["what"]
    assert "File too large" in one["what"]
    assert "TMPDIR" in one["do"]
    assert checks(found, "fail") == []
    assert files(tmp_path) == []


def test_newer_root(cli, tmp_path):
    (tmp_path / "penstock.json").write_text('{"format": 99}')
    run = cli("doctor", tmp_path, "--quick", "--json")
    assert (run.code, checks(run.json, "fail")) == (1, ["root"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor",),
        ("doctor", "s3://doctor/x", "--option", "nope=1"),
        ("doctor", "s3://doctor/x", "--option", "region"),
        ("doctor", __file__),
    ],
    ids=["no url", "unknown option", "no value", "a file"],
)
def test_callers_mistakes(cli, monkeypatch, arguments):
    monkeypatch.delenv("PENSTOCK_ROOT", raising=False)
    run = cli(*arguments)
    assert (run.code, run.out) == (2, "")
    assert run.err


def test_one_that_was_killed_keeps_nobody_from_making_a_root(tmp_path):
    command = [sys.executable, "-m", "penstock", "doctor", str(tmp_path / "root")]
    doctor = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until(lambda: any(tmp_path.glob("root/heartbeats/*/create/*")), process=doctor)
    finally:
        os.kill(doctor.pid, signal.SIGKILL)
        doctor.wait()
    root = loader.Root(tmp_path / "root")
    with root.write("d") as writer:
        writer.add("k", {"cls": 1})
    assert root.datasets() == ["d"]
