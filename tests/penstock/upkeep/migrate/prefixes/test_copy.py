"""Plain prefixes: copied, killed, resumed, changed at either side, verified, and told apart from roots."""

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

import loader
from loader.errors import AlreadyExists, Conflict, Corrupt, InvalidStore
from loader.storage import open_store
from penstock.cli import main
from penstock.upkeep.copying.copy_one import Transfer
from penstock.upkeep.copying.items import Item, Pace, in_words
from penstock.upkeep.copying.journal import Journal
from penstock.upkeep.migrate.plan import plan_prefix
from penstock.upkeep.migrate.prefix_copy import FOLDER, migrate_prefix, prefix_status
from penstock.upkeep.migrate.prefix_verify import AT_ONCE, verify_prefix
from tests.proxy_stores import ObservedStore
from tests.refusals import refusal
from tests.servers.s3 import boto3_client


def fill(store, count, nbytes=300):
    """Keys and bytes of what there is to copy."""
    made = {f"v/{i:03d}.bin": random.Random(i).randbytes(i % nbytes) for i in range(count)}
    made |= {"a name with spaces.txt": b"x", "v-ä/ü.bin": b"", "v.bin": b"beside v/"}
    for key, data in made.items():
        store.put(key, data)
    return made


@pytest.fixture
def places(tmp_path):
    return open_store(str(tmp_path / "from")), open_store(str(tmp_path / "to"))


def there(store):
    return {info.key: store.get(info.key).data for info in store.list("") if not info.key.startswith(FOLDER)}


def manifest(store):
    """key -> sha256, of all pieces of the manifest; no run has left lines."""
    keys = [info.key for info in store.list(FOLDER)]
    assert not [key for key in keys if key.endswith(".jsonl")]
    tables = [pq.read_table(Path(store.url) / key) for key in keys if key.endswith(".parquet")]
    return {row["key"]: row["sha256"] for table in tables for row in table.to_pylist()}


def hashes(made):
    return {key: hashlib.sha256(data).hexdigest() for key, data in made.items()}


def put_keys(store):
    """What was written to an observed store beside the journal."""
    return [key for verb, key in store.calls if verb.startswith("put") and not key.startswith(FOLDER)]


def test_source_that_was_emptied_since_is_none(places, capsys):
    source, target = places
    source.put("a.bin", b"x")
    assert main(["migrate", "run", target.url, "--from", source.url]) == 0
    source.delete_many(["a.bin"])
    for verb in ("plan", "run", "status", "verify"):
        assert main(["migrate", verb, target.url, "--from", source.url]) == 0
    assert "1 others at the target" in capsys.readouterr().out
    assert there(target) == {"a.bin": b"x"}


@pytest.mark.parametrize("verb", ["plan", "run", "status", "verify"])
def test_source_without_anything_is_a_mistake(tmp_path, capsys, verb):
    """A URL that was mistyped is not a migration that is done, and the target is not marked as filled from there."""
    target = tmp_path / "to"
    assert main(["migrate", verb, str(target), "--from", str(tmp_path / "form")]) == 2
    assert f"{tmp_path / 'form'}: nothing lies there" in capsys.readouterr().err
    assert not target.exists() or not list(target.rglob("*"))


def test_all_objects_arrive_once_and_are_in_the_manifest(places, monkeypatch):
    monkeypatch.setattr("penstock.upkeep.copying.copy_one.PIECE_BYTES", 100)
    monkeypatch.setattr("penstock.upkeep.copying.copy_one.HELD_BYTES", 200)
    monkeypatch.setattr("penstock.upkeep.copying.journal.PIECE_ROWS", 30)
    source, target = places
    made = fill(source, 90)
    plan = plan_prefix(source, target)
    report = migrate_prefix(source, target, Pace())
    assert (report.copied, report.skipped, report.failures) == (len(made), 0, {})
    assert (plan.objects, plan.nbytes) == (report.copied, report.nbytes)
    assert there(target) == made
    assert manifest(target) == hashes(made)
    source.put("new", b"new")
    again = ObservedStore(target)
    report = migrate_prefix(source, again, Pace())
    assert (report.copied, report.skipped, put_keys(again)) == (1, len(made), ["new"])
    assert manifest(target) == hashes({**made, "new": b"new"})
    assert not prefix_status(source, target).lags
    verdict = verify_prefix(source, target, full=True)
    assert (verdict.problems, verdict.read, verdict.extra) == ({}, len(made) + 1, 0)


KILLED = """
import sys
from loader.storage import open_store
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.prefix_copy import migrate_prefix
print("begun", flush=True)
migrate_prefix(open_store(sys.argv[1]), open_store(sys.argv[2]), Pace(requests_per_s=150), at_once=4)
"""


def test_what_is_in_no_listing_is_named(places, capsys):
    source, target = places
    source.put("a/kept", b"x")
    folder = Path(source.url)
    (folder / ".tmp-0123456789abcdef").write_bytes(b"of a writer that was killed")
    (folder / ".tmp-2024").mkdir()
    (folder / ".tmp-2024" / "film.mp4").write_bytes(b"y")
    (folder / "a" / ".tmp-notes").write_bytes(b"y")
    (folder / "a" / "gone.mp4").symlink_to("/no/such/mount.mp4")
    os.mkfifo(folder / "pipe")
    with open(os.path.join(os.fsencode(folder), b"caf\xe9.mp4"), "wb") as file:
        file.write(b"z")
    named = {".tmp-2024", "a/.tmp-notes", "a/gone.mp4", "pipe", "caf\\xe9.mp4"}
    arguments = [target.url, "--from", source.url]
    assert main(["migrate", "run", *arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["failures"].keys() == named
    assert there(target) == {"a/kept": b"x"}
    assert main(["migrate", "verify", *arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"].keys() == named
    assert main(["migrate", "status", *arguments]) == 1
    assert "5 can never be copied" in capsys.readouterr().out


def test_killed_run_is_resumed_and_copies_nothing_again(places, monkeypatch):
    source, target = places
    made = fill(source, 260)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, source.url, target.url], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"begun\n"
        while process.poll() is None and len(there(target)) < 150:
            pass
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    before = there(target)
    assert prefix_status(source, target).unfinished
    puts = ObservedStore(target)
    report = migrate_prefix(source, puts, Pace())
    assert not set(put_keys(puts)) & set(before)
    assert (report.copied, report.skipped) == (len(made) - len(before), len(before))
    assert there(target) == made
    # What the killed run had not noted yet was taken by its size, until somebody reads it.
    noted = manifest(target)
    assert sum(not sha256 for sha256 in noted.values()) == report.unhashed <= 64 + 4 * 4
    assert len(before) - report.unhashed >= 64
    assert verify_prefix(source, target, full=True).problems == {}
    assert manifest(target) == hashes(made)


def test_what_changes_at_the_source_is_named_and_replaced_when_asked(places, capsys):
    source, target = places
    made = fill(source, 5)
    migrate_prefix(source, target, Pace())
    source.put("v/003.bin", b"another")
    source.put("v/004.bin", made["v/004.bin"])  # written again, the same
    source.delete_many(["v/001.bin"])
    assert main(["migrate", "status", target.url, "--from", source.url]) == 1
    assert main(["migrate", "verify", target.url, "--from", source.url]) == 1
    capsys.readouterr()
    assert main(["migrate", "run", target.url, "--from", source.url, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert list(found["failures"]) == ["v/003.bin"]
    assert "was replaced since it was copied" in found["failures"]["v/003.bin"]
    assert there(target) == made
    assert main(["migrate", "run", target.url, "--from", source.url, "--update"]) == 0
    assert there(target) == {**made, "v/003.bin": b"another"}  # and nothing is deleted
    assert main(["migrate", "verify", target.url, "--from", source.url, "--full"]) == 0
    assert "1 others at the target" in capsys.readouterr().out


def test_source_that_changes_under_a_run_is_named_and_the_rest_continues(places):
    source, target = places
    made = fill(source, 10)

    def change(verb, key):
        if verb == "get_range" and key == "v/005.bin":
            source.delete_many([key])
        if verb == "get_range" and key == "v/006.bin":
            source.put(key, bytes(6))

    report = migrate_prefix(ObservedStore(source, change), target, Pace())
    assert set(report.failures) == {"v/005.bin", "v/006.bin"}
    assert there(target) == {key: data for key, data in made.items() if key not in report.failures}
    assert migrate_prefix(source, target, Pace()).failures == {}
    assert there(target)["v/006.bin"] == bytes(6)


def test_objects_that_are_there_already_are_told_apart(places):
    source, target = places
    made = fill(source, 8)
    target.put("v/007.bin", made["v/007.bin"])  # another tool's, whole
    target.put("v/006.bin", b"!" * 6)  # as long, and wrong
    target.put("v/005.bin", b"")  # cut short
    target.put("extra", b"mine")
    report = migrate_prefix(source, target, Pace())
    assert (report.unhashed, list(report.failures)) == (2, ["v/005.bin"])
    assert there(target)["v/005.bin"] == b""
    quick = verify_prefix(source, target, full=False)
    assert (set(quick.problems), quick.unhashed, quick.extra) == ({"v/005.bin"}, 2, 1)
    full = verify_prefix(source, target, full=True)
    assert set(full.problems) == {"v/005.bin", "v/006.bin"}
    assert manifest(target)["v/007.bin"] == hashlib.sha256(made["v/007.bin"]).hexdigest()
    target.put("v/003.bin", b"by hand")  # what we copied is not ours any more
    assert "another tool wrote there" in migrate_prefix(source, target, Pace()).failures["v/003.bin"]
    target.put("v/004.bin", b"abcd")  # as long as ours
    assert set(verify_prefix(source, target, full=True).problems) >= {"v/003.bin", "v/004.bin"}


def test_other_places_are_refused(places, tmp_path):
    source, target = places
    fill(source, 3)
    with refusal(
        InvalidStore,
        what="locations",
        given=[f"{tmp_path}/from/inside", f"{tmp_path}/from"],
        accepted="locations apart",
    ):
        migrate_prefix(source, open_store(f"{source.url}/inside"), Pace())
    root = loader.Root(str(tmp_path / "root"))
    root.create()
    for pair in ((root.store, target), (source, root.store)):
        with refusal(
            Conflict, what="log", where=f"{tmp_path}/root", accepted="a location that is not a root"
        ):
            migrate_prefix(*pair, Pace())
    migrate_prefix(source, target, Pace())
    other = open_store(str(tmp_path / "other"))
    fill(other, 3)
    with refusal(
        Conflict,
        what=".penstock-migration/source.json",
        where=f"{tmp_path}/to",
        given=f"{tmp_path}/other",
        accepted=f"{tmp_path}/from",
    ):
        migrate_prefix(other, target, Pace())
    (piece,) = [info.key for info in target.list(FOLDER) if info.key.endswith(".parquet")]
    target.put(piece, b"PAR1 by hand")
    with refusal(Corrupt, what="record of a migration", where=f"{tmp_path}/to/{piece}"):
        migrate_prefix(source, target, Pace())


@pytest.mark.parametrize(
    "other",
    [
        lambda at: {"endpoint_url": at, "max_concurrency": 32},
        lambda at: {"endpoint": f"{at}/"},
        lambda at: {"client_kwargs": {"endpoint_url": at}, "timeout_s": 20},
    ],
)
def test_one_in_the_other_is_refused_however_its_options_are_spelled(two_s3s, other):
    (server, source), _ = two_s3s
    source.put("k", b"x")
    keys = {"key": "kkkk", "secret": "ssss", "region": "us-east-1"}
    inside = open_store("s3://bucket/p/copy", {**keys, **other(server.endpoint)})
    for pair in ((source, inside), (inside, source)):
        with refusal(InvalidStore, what="locations", given=[pair[1].url, pair[0].url]):
            plan_prefix(*pair)
    inside.close()


def test_prefix_of_the_same_name_at_another_server_is_another(two_s3s):
    (_, source), (server, _) = two_s3s
    source.put("k", b"x")
    options = {"endpoint_url": server.endpoint, "key": "kkkk", "secret": "ssss"}
    target = open_store("s3://bucket/p/copy", options)
    assert migrate_prefix(source, target, Pace()).copied == 1
    target.close()


@pytest.mark.parametrize("text", [b"{not json", b'["x"]', b"{}"])
def test_source_that_somebody_edited_is_corrupt(places, text, capsys):
    source, target = places
    source.put("k", b"x")
    target.put(f"{FOLDER}source.json", text)
    with refusal(Corrupt, what=".penstock-migration/source.json", accepted="what a migration wrote"):
        migrate_prefix(source, target, Pace())
    assert main(["migrate", "plan", target.url, "--from", source.url]) == 1
    assert "Corrupt" in capsys.readouterr().err


def test_options_of_no_source_are_refused(places, capsys):
    assert main(["migrate", "plan", places[1].url, "--from-option", "anon=true"]) == 2
    assert "--from-option needs --from" in capsys.readouterr().err


def test_root_inside_is_refused_and_named(places):
    source, target = places
    made = fill(source, 5)
    with loader.Root(f"{source.url}/v/deep").write("d") as writer:
        writer.add("k", {"x": b"1"})
    for attempt in (plan_prefix, prefix_status, lambda *both: migrate_prefix(*both, Pace())):
        with refusal(Conflict, what="v/deep/penstock.json", accepted="no root inside"):
            attempt(source, target)
    assert not [key for key in there(target) if key.endswith("penstock.json")]
    shutil.rmtree(Path(source.url) / "v" / "deep")
    source.put("other/penstock.json", b'{"name": "somebody else\'s"}')
    assert migrate_prefix(source, target, Pace()).failures == {}
    assert set(there(target)) >= {*made, "other/penstock.json"}


def test_two_runs_at_once_lose_no_line(places):
    source, target = places
    made = fill(source, 6)
    with Journal(target, FOLDER) as early:
        early.begin()
        migrate_prefix(source, target, Pace())
        early.add(Journal(target, FOLDER).find("v.bin"))
        early.keep()
    assert manifest(target) == hashes(made)


CLOUDS = {"s3": ("s3", "endpoint_url"), "gcs": ("gs", "endpoint_url"), "azure": ("az", "endpoint")}
FAULTS = [
    *["ok"] * 9,
    503,
    "ok",
    "reset",
    *["ok"] * 5,
    "drop",
    "commit-drop",
    "ok",
    503,
    500,
    "ok",
    "etag",
]


@pytest.mark.parametrize(
    "way", [["s3", "gcs"], pytest.param(["s3", "azure", "gcs"], marks=pytest.mark.server)], ids="-".join
)
def test_from_cloud_to_cloud_with_faults_on_the_way(way, places, shared, request):
    """From a disk over each cloud to a disk. Another ETag at most makes an object fail, which the next run copies; what
    arrives is what was there, and `verify --full` finds the same. No byte is flipped on the way: nobody has said what a
    plain prefix's bytes must be (a root's: test_migrate.py)."""
    http, servers = shared("servers/http"), []
    source, last = places
    made = fill(source, 40)
    try:
        for name in [*way, None]:
            target = last
            if name:
                (scheme, where), options = CLOUDS[name], request.getfixturevalue(name)
                behind = options[where].removesuffix(urlsplit(options[where]).path)
                servers.append(http.HttpServer(http.forward_origin(behind)))
                own = {**options, where: options[where].replace(behind, servers[-1].endpoint)}
                target = open_store(
                    f"{scheme}://bucket/prefix-{'-'.join(way)}", {**own, "retry_base_s": 0.001}
                )
            for one in servers[-2 if name else -1 :]:  # the source's, and the target's
                one.faults.extend(FAULTS)
            with contextlib.closing(source):
                for _ in range(5):
                    report = migrate_prefix(source, target, Pace(), at_once=3)
                    if not report.failures:
                        break
                assert report.failures == {}
                assert there(target) == made
                assert verify_prefix(source, target, full=True).problems == {}
            source = target
        assert [list(one.faults) for one in servers] == [[]] * len(servers), "each was met"
    finally:
        for server in servers:
            server.close()


def test_folder_markers_are_skipped(s3, tmp_path):
    """What a console makes for a folder: 'folder/', listed as an empty 'folder', which nobody can read."""
    client = boto3_client(s3)
    for key, data in (("marked/folder/", b""), ("marked/folder/x", b"1"), ("marked/empty", b"")):
        client.put_object(Bucket="bucket", Key=key, Body=data)
    client.close()
    source, target = open_store("s3://bucket/marked", s3), open_store(str(tmp_path / "to"))
    report = migrate_prefix(source, target, Pace())
    assert (report.copied, report.markers, report.failures) == (2, 1, {})
    assert there(target) == {"folder/x": b"1", "empty": b""}
    assert not prefix_status(source, target).lags
    assert verify_prefix(source, target, full=True).problems == {}
    source.close()


def test_from_s3_to_s3_other_bytes_of_the_same_size_are_not_taken_for_a_copy(s3):
    """As a run leaves them that was killed while it saw that something broke on the way."""
    with contextlib.ExitStack() as stack:
        source, target = (
            stack.enter_context(contextlib.closing(open_store(f"s3://bucket/{name}", s3)))
            for name in ("twin-from", "twin-to")
        )
        for key in ("broken", "same", "new"):
            source.put(key, key.encode())
        target.put("broken", b"BROKEN")
        target.put("same", b"same")
        report = migrate_prefix(source, target, Pace())
        assert (report.copied, report.skipped, report.unhashed, list(report.failures)) == (
            1,
            1,
            1,
            ["broken"],
        )
        assert "already holds another object" in report.failures["broken"]
        assert prefix_status(source, target).lags
        copy = Transfer(source, target, Pace())
        assert not copy(Item(path="same", nbytes=4, may_exist=True)).written
        with pytest.raises(AlreadyExists):
            copy(Item(path="broken", nbytes=6, may_exist=True))
        target.delete_many(["broken"])
        assert migrate_prefix(source, target, Pace()).failures == {}
        assert there(target)["broken"] == b"broken"


def test_large_object_of_the_same_size_is_read_before_it_is_taken_for_a_copy(s3, monkeypatch):
    """Also one that came between the listing and the upload: what is noted of it is true of what is there."""
    monkeypatch.setattr("penstock.upkeep.copying.copy_one.HELD_BYTES", 1000)
    data = random.Random(1).randbytes(5000)
    with contextlib.ExitStack() as stack:
        source, target = (
            stack.enter_context(contextlib.closing(open_store(f"s3://bucket/{name}", s3)))
            for name in ("large-from", "large-to")
        )
        for key in ("other", "same"):
            source.put(key, data)
        target.put("other", data[:-1] + b"x")
        target.put("same", data)
        report = migrate_prefix(source, target, Pace())
        assert list(report.failures) == ["other"]
        assert "has other bytes: another tool wrote there" in report.failures["other"]
        assert target.get("other").data == data[:-1] + b"x"
        same = Transfer(source, target, Pace())(Item(path="same", nbytes=5000))
        assert (same.written, same.digest) == (False, f"sha256:{hashlib.sha256(data).hexdigest()}")
        target.delete_many(["other"])
        assert migrate_prefix(source, target, Pace()).failures == {}
        assert there(target) == {"other": data, "same": data}


def test_run_that_has_nothing_to_note_leaves_the_manifest(places):
    source, target = places
    fill(source, 5)
    migrate_prefix(source, target, Pace())
    made = [info.key for info in target.list(FOLDER)]
    for _ in range(2):
        assert migrate_prefix(source, target, Pace()).copied == 0
        assert [info.key for info in target.list(FOLDER)] == made
    source.put("new", b"new")
    migrate_prefix(source, target, Pace())
    assert [info.key for info in target.list(FOLDER)] != made
    assert "new" in manifest(target)


@pytest.fixture
def two_s3s(shared):
    """(server, store) of two small S3s."""
    made = [shared("servers/http").HttpServer(shared("servers/s3").SmallS3()) for _ in range(2)]
    options = {"key": "kkkk", "secret": "ssss", "region": "us-east-1", "retry_base_s": 0.001}
    stores = [open_store("s3://bucket/p", {**options, "endpoint_url": one.endpoint}) for one in made]
    yield list(zip(made, stores, strict=True))
    for store in stores:
        store.close()
    for server in made:
        server.close()


@pytest.mark.parametrize("is_noted", [False, True])
def test_verify_reads_where_two_md5s_differ(two_s3s, is_noted):
    (_, source), (server, target) = two_s3s
    source.put("same", b"alike")
    source.put("k", b"right")
    if is_noted:
        migrate_prefix(source, target, Pace())
    server.origin.hold("p/k", b"wrong")
    server.origin.hold("p/same", b"alike")
    found = verify_prefix(source, target, full=False)
    assert (found.checked, found.read, list(found.problems)) == (2, 0, ["k"])
    assert in_words(f"sha256:{hashlib.sha256(b'wrong').hexdigest()}") in found.problems["k"]


def test_verify_does_not_read_everything_where_etags_are_no_md5s(two_s3s):
    """As with KMS: they look like MD5s, and are none."""
    (_, source), (server, target) = two_s3s
    origin = server.origin
    for number in range(200):
        source.put(f"{number:03d}", b"%d" % number)
        origin.hold(f"p/{number:03d}", b"%d" % number)

    def encrypt_etags(request):
        status, body, headers = origin(request)
        return status, re.sub(rb'<ETag>"(.{31}).', rb'<ETag>"0\1', body), headers

    server.origin = encrypt_etags
    found = verify_prefix(source, target, full=False)
    assert (found.checked, found.problems) == (200, {})
    assert 0 < found.read <= 4 * AT_ONCE
    assert f"{found.read} of them read" in found.to_text()
