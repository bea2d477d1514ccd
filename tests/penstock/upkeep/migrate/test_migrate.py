"""Mirrors: made, killed in the middle, brought up to date, refused, planned."""

import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import loader
from loader.dataset.log.dataset_starts import parse_dataset_start
from loader.dataset.publishing import publish as changes
from loader.errors import Conflict, Corrupt, InvalidRuntime, InvalidStore, NotARoot, Transient
from loader.storage import open_store
from loader.storage.files import MemoryBudget
from penstock.cli import main
from penstock.search.overlap.protected_texts import protected_texts
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.mirror_update import last_copied_entry, migrate
from penstock.upkeep.migrate.plan import plan_migration
from penstock.upkeep.verify.root import verify_root
from penstock.upkeep.verify.version import verify
from tests.proxy_stores import ObservedStore
from tests.refusals import refusal


def write(root, numbers, fill=2000):
    with root.write("d", part_samples=5) as writer:
        for i in numbers:
            writer.add(f"k{i:04d}", {"cls": i, "bin": random.Random(i).randbytes(fill)}, metadata={"i": i})
    return writer.version


@pytest.fixture
def root(tmp_path):
    root = loader.Root(str(tmp_path / "primary"))
    write(root, range(20))
    write(root, range(20, 30))
    return root


@pytest.fixture
def place(tmp_path):
    return open_store(str(tmp_path / "mirror"))


def objects(store):
    """Key -> bytes of what a mirror shall have."""
    folders = ("data/", "plans/", "views/", "packs/", "protected/", "slices/", "cards/", "log/")
    return {
        info.key: store.get(info.key).data
        for info in store.list("")
        if info.key.startswith(folders)
        and "/state-" not in info.key
        and not info.key.endswith(".samples.parquet")
    }


def test_mirror_has_the_same_ids_opens_alone_and_verifies(root, place, capsys):
    root.open("d@1").where("i < 7").select("cls")._table  # noqa: B018 - stores the view
    protected_texts(root.open("d@2"))
    root.save_slice("d@2", "cups", ["k0003"], by="ann", why="odd")
    root.alias("d@2", "prod")
    report = migrate(root, place, Pace())
    assert (report.failures, report.skipped, report.recorded) == ({}, 0, True)
    assert objects(place) == objects(root.store)
    mirror = loader.Root(place.url)
    assert [one.id for one in mirror.versions("d")] == [one.id for one in root.versions("d")]
    assert mirror.open("d@prod").id == root.open("d@2").id
    assert verify(mirror, "d@2", full=True).problems == []
    assert [dict(one) for one in root.state.mirrors] == [
        {"url": place.url, "upto": report.entries - 1, "n": report.entries}
    ]
    assert len(mirror.open("d@2").slice("cups")) == 1
    for change in (
        lambda: mirror.retire("d@1", reason="x"),
        lambda: mirror.save_slice("d@2", "cups", ["k0003"], by="ann", why="odd"),
    ):
        with refusal(Conflict, what="mirror", where=place.url, accepted=root.url):
            change()
    assert main(["migrate", "status", place.url, "--root", root.url]) == 0
    assert "none" in capsys.readouterr().out


def test_second_sync_costs_what_is_new_at_any_size(tmp_path):
    """Requests of a sync that adds one part, after 4 parts and after 40, are the same."""
    counts = []
    for n in (20, 200):
        root = loader.Root(str(tmp_path / f"root-{n}"))
        write(root, range(n), fill=10)
        place = open_store(str(tmp_path / f"mirror-{n}"))
        migrate(root, place, Pace())
        write(root, range(n, n + 5), fill=10)
        source, target = ObservedStore(root.store), ObservedStore(place)
        root.store = source
        report = migrate(root, target, Pace())
        assert (
            report.copied == 8
        )  # a shard, its index, shards, keys, hashes of keys, samples, stats, the manifest
        counts.append((len(source.calls), len(target.calls)))
        again = ObservedStore(place)
        assert migrate(root, again, Pace()).copied == 0
        assert not [name for name, _ in again.calls if name.startswith("put")]
    assert counts[0] == counts[1]


KILLED = """
import sys, loader
from loader.storage import open_store
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.mirror_update import migrate
print("begun", flush=True)
migrate(loader.Root(sys.argv[1]), open_store(sys.argv[2]), Pace(requests_per_s=100), at_once=4)
print("done", flush=True)
"""


def test_killed_migration_is_resumed_and_copies_nothing_twice(tmp_path):
    root = loader.Root(str(tmp_path / "primary"))
    write(root, range(150), fill=50)
    place, chance, kills = open_store(str(tmp_path / "mirror")), random.Random(4), 0
    command = [sys.executable, "-c", KILLED, root.url, place.url]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "begun\n"
            enough = len(list(place.list("data/"))) + chance.randrange(4, 12)
            while process.poll() is None and len(list(place.list("data/"))) < enough:
                pass
            kills += process.poll() is None
            process.send_signal(signal.SIGKILL)
    assert kills == 3
    there = {info.key for info in place.list("data/")}
    with pytest.raises(loader.errors.VersionNotFound):  # the log comes last
        loader.Root(place.url).open("d@1")
    puts = ObservedStore(place)
    report = migrate(root, puts, Pace())
    assert not report.failures
    assert report.skipped == len(there)
    assert not there & {key for name, key in puts.calls if name in ("put_if_absent", "put_file")}
    assert objects(place) == objects(root.store)
    assert list(place.list("migrations/")) == []


def test_concurrent_change_is_named_and_the_rest_continues(root, place, tmp_path, capsys):
    paths = sorted(str(path.relative_to(root.url)) for path in Path(root.url).rglob("*.tar"))
    gone, changed = paths[0], paths[1]
    whole = (Path(root.url) / changed).read_bytes()
    (Path(root.url) / gone).rename(tmp_path / "gone")
    (Path(root.url) / changed).write_bytes(whole[:-1] + b"x")
    report = migrate(root, place, Pace())
    assert set(report.failures) == {gone, changed}
    assert "sha256" in report.failures[changed]
    assert {info.key for info in place.list("data/")} == {
        key for key in objects(root.store) if key.startswith("data/") and key not in report.failures
    }
    assert list(place.list("log/")) == []
    assert main(["migrate", "run", place.url, "--root", root.url, "--json"]) == 1
    assert set(json.loads(capsys.readouterr().out)["failures"]) == {gone, changed}
    (tmp_path / "gone").rename(Path(root.url) / gone)
    (Path(root.url) / changed).write_bytes(whole)
    assert migrate(root, place, Pace()).copied == 2
    assert objects(place) == objects(root.store)


def test_large_objects_go_through_a_file_and_arrive_whole(tmp_path, place, monkeypatch):
    monkeypatch.setattr("penstock.upkeep.copying.copy_one.HELD_BYTES", 1000)
    root = loader.Root(str(tmp_path / "primary"))
    write(root, range(10))
    (tmp_path / "scratch").mkdir()
    assert not migrate(root, place, Pace(), scratch=str(tmp_path / "scratch")).failures
    assert verify(loader.Root(place.url), "d@1", full=True).problems == []
    assert os.listdir(tmp_path / "scratch") == []


class Flipping:
    """A store; of what it gives or takes under `key` by these verbs a bit is flipped, the first so many times."""

    def __init__(self, store, key, verbs, times=1):
        self.store, self.url, self.key, self.verbs, self.times = store, store.url, key, verbs, times

    def flipped(self, key, data):
        if key != self.key or self.times < 1:
            return data
        at = bytes(data).rindex(b"at_us") + 8 if key.startswith("log/") else len(data) // 2
        at, self.times = at + self.times % 7, self.times - 1  # another bit each time
        return bytes(data[:at]) + bytes([data[at] ^ 1]) + bytes(data[at + 1 :])

    def __getattr__(self, name):
        found = getattr(self.store, name)
        if name not in self.verbs:
            return found
        if name.startswith("put"):
            return lambda key, data: found(key, self.flipped(key, data))

        def read(key, *args, **kwargs):
            blob = found(key, *args, **kwargs)
            return blob._replace(data=self.flipped(key, blob.data))

        return read


def a_view(root):
    root.open("d@1").where("i < 7").select("cls")._table  # noqa: B018 - stores it
    return next(info.key for info in root.store.list("views/"))


WAYS = {
    "read at the source": ("source", ("get", "get_range")),
    "written": ("target", ("put", "put_if_absent")),
    "read at the target": ("target", ("get", "get_range")),
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["first entry", "entry", "last entry", "view"])
def test_bit_that_flips_on_the_way_is_in_no_mirror(root, place, what, way, times):
    """Of what nothing has a digest of."""
    root.alias("d@2", "prod")
    state = root.state
    entries = {"first entry": 1, "entry": state.n - 1, "last entry": state.n}
    key = a_view(root) if what == "view" else f"log/{entries[what]:012d}.json"
    where, verbs = WAYS[way]
    plain, target = root.store, place
    if where == "source":
        root.store = Flipping(plain, key, verbs, times)
    else:
        target = Flipping(place, key, verbs, times)
    report = migrate(root, target, Pace())
    assert report.failures == {}
    assert (target.times if where == "target" else root.store.times) == 0
    root.store = plain
    assert objects(place) == objects(plain)
    assert verify_root(loader.Root(place.url), full=True).problems == []


@pytest.mark.parametrize("what", ["entry", "view"])
@pytest.mark.parametrize("way", WAYS)
def test_what_never_comes_over_whole_is_named_and_leaves_nothing(root, place, what, way):
    key = a_view(root) if what == "view" else "log/000000000003.json"
    where, verbs = WAYS[way]
    plain = root.store
    if where == "source":
        root.store, target = Flipping(plain, key, verbs, 10**6), place
    else:
        target = Flipping(place, key, verbs, 10**6)
    if what == "view":
        assert list(migrate(root, target, Pace()).failures) == [key]
        assert list(place.list("log/")) == []
    else:
        what = "reads of an object" if where == "source" else "copied bytes"
        with refusal(Corrupt, what=what, within=f"/{key}", given=3):
            migrate(root, target, Pace())
        assert [info.key for info in place.list("log/")] == [f"log/{n:012d}.json" for n in (1, 2)]
    assert list(place.list(key)) == []
    root.store = plain
    assert migrate(root, place, Pace()).failures == {}
    assert objects(place) == objects(plain)


def test_what_was_done_to_the_log_is_copied_before_its_entries(root, place):
    root.store.put("log/repair-000000000002.json", b"{}")
    migrate(root, counted := ObservedStore(place), Pace())
    puts = [key for verb, key in counted.calls if verb.startswith("put")]
    assert place.get("log/repair-000000000002.json").data == b"{}"
    assert puts.index("log/repair-000000000002.json") < puts.index("log/000000000001.json")


def test_mirror_has_starts_of_its_own(root):
    """Of the versions that it has, also where its primary is a disk, which has none."""
    mirror = open_store("memory://mirror-with-starts")
    for newest in (2, 3):
        migrate(root, mirror, Pace())
        start = parse_dataset_start(mirror.get("starts/d.json").data)
        assert start["latest"] == start[str(newest)] == (root.record("d").id, root.record("d").manifest)
        write(root, range(30 * newest, 30 * newest + 5))
    assert loader.Root(mirror.url).open("d").number == 3


def test_version_published_meanwhile_waits_for_the_next_run(root, place):
    once = threading.Lock()

    def publish(verb, key):
        if verb == "put_if_absent" and key.startswith("data/") and once.acquire(blocking=False):
            write(loader.Root(root.url), range(30, 35))

    assert not migrate(root, ObservedStore(place, publish), Pace()).failures
    assert len(loader.Root(place.url).versions("d")) == 2
    assert main(["migrate", "status", place.url, "--root", root.url]) == 1
    assert not migrate(root, place, Pace()).failures
    assert objects(place) == objects(root.store)


CLOUDS = {"s3": ("s3", "endpoint_url"), "gcs": ("gs", "endpoint_url"), "azure": ("az", "endpoint")}
FAULTS = [
    *["ok"] * 12,
    503,
    "ok",
    "reset",
    *["ok"] * 5,
    "drop",
    "flip",
    "commit-drop",
    "ok",
    "flip",
    503,
    500,
]


def flips_of_data_alone(faults):
    """What misbehaves next: a flip waits for a read of an object whose SHA-256 or CRC-32C the root knows, everything
    else comes when it is due. (A marker or a log entry with a wrong byte ends a run with an error that names it.)"""

    def next_fault(request):
        whole = request.method == "GET" and "/data/" in request.path
        due = (number for number, fault in enumerate(faults) if fault != "flip" or whole)
        number = next(due, None)
        if number is None:
            return None
        fault = faults[number]
        del faults[number]
        return fault

    return next_fault


@pytest.mark.parametrize(
    "way",
    [["s3", "gcs"], pytest.param(["s3", "azure", "gcs"], marks=[pytest.mark.server, pytest.mark.nightly])],
    ids="-".join,
)
def test_from_cloud_to_cloud_with_faults_on_the_way(root, way, place, shared, request):
    """From a disk over each cloud to a disk again; every server misbehaves when it is written and when it is read. What
    had a flipped byte on the way is named, or read again; the next run copies it."""
    http, servers, source = shared("servers/http"), [], root

    def migrate_until_done(source, target):
        for _ in range(8):
            report = migrate(source, target, Pace(), at_once=3)
            if not report.failures:
                return
            # (the last: what a create that got no answer had left was read with a wrong byte)
            known = ("sha256", "crc32c", "already holds another object")
            assert all(any(word in why for word in known) for why in report.failures.values())

    try:
        for name in way:
            (scheme, where), options = CLOUDS[name], request.getfixturevalue(name)
            behind = options[where].removesuffix(urlsplit(options[where]).path)  # Azurite's has the account
            server = http.HttpServer(http.forward_origin(behind))
            server.fault_of = flips_of_data_alone(server.faults)
            servers.append(server)
            own = {**options, where: options[where].replace(behind, server.endpoint)}
            own |= {"retry_base_s": 0.001, "timeout_s": 20}
            url = f"{scheme}://bucket/migrate-{'-'.join(way)}"
            with contextlib.closing(open_store(url, own)) as target:
                for one in servers[-2:]:  # the source's, and the target's
                    one.faults.extend(FAULTS)
                migrate_until_done(source, target)
            # What is there, asked of the server behind: a fault that is still to come meets who copies, not this look.
            with contextlib.closing(open_store(url, options)) as there:
                assert objects(there) == objects(root.store)
            source = loader.Root(url, options=own)
        servers[-1].faults.extend(FAULTS)
        migrate_until_done(source, place)
        source.close()
        assert [list(one.faults) for one in servers] == [[]] * len(servers), "each was met"
    finally:
        for server in servers:
            server.close()
    assert objects(place) == objects(root.store)
    assert verify(loader.Root(place.url), "d@2", full=True).problems == []


def test_target_that_fails_for_good_is_named(root, place):
    def full(verb, key):
        if verb == "put_if_absent" and key.endswith(".tar"):
            raise Transient("no answer")

    report = migrate(root, ObservedStore(place, full), Pace())
    assert all(path.endswith(".tar") for path in report.failures)
    assert list(place.list("log/")) == []


def test_other_places_are_refused(root, place, tmp_path):
    with refusal(
        InvalidStore,
        what="locations",
        given=[f"{tmp_path}/primary", f"{tmp_path}/primary"],
        accepted="locations apart",
    ):
        migrate(root, root.store, Pace())
    other = loader.Root(str(tmp_path / "other"))
    write(other, range(3))
    with refusal(Conflict, what="id", where=other.url):
        migrate(root, other.store, Pace())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.doc").write_bytes(b"")
    with refusal(NotARoot, what="target", where=tmp_path / "full", given="thesis.doc"):
        migrate(root, open_store(str(tmp_path / "full")), Pace())
    migrate(root, place, Pace())
    last = max(info.key for info in place.list("log/") if "state" not in info.key)
    place.put(last, place.get(last).data.replace(b'"nonce":"', b'"nonce":"f'))
    with refusal(
        Conflict, what="log/000000000005.json", where=f"{tmp_path}/mirror", accepted=f"{tmp_path}/primary"
    ):
        migrate(root, place, Pace())


def test_bytes_that_somebody_else_left_are_not_replaced(root, place):
    shard = min(key for key in objects(root.store) if key.endswith(".tar"))
    migrate_marker = json.loads(root.store.get("penstock.json").data) | {"mirror_of": root.url}
    place.put("penstock.json", json.dumps(migrate_marker).encode())
    place.put(shard, b"another")
    report = migrate(root, place, Pace())
    assert list(report.failures) == [shard]
    assert place.get(shard).data == b"another"


def test_plan_counts_what_the_run_does(root, place, tmp_path, capsys):
    lists = tmp_path / "rclone.txt", tmp_path / "s5cmd.txt"
    arguments = [
        "--rclone",
        str(lists[0]),
        "--s5cmd",
        str(lists[1]),
        "--egress",
        "0.5",
        "--json",
        "--root",
        root.url,
    ]
    assert main(["migrate", "plan", place.url, *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    report = migrate(root, place, Pace())
    assert found["objects"] == report.copied
    assert found["versions"] == ["d@1", "d@2"]
    assert found["egress_usd"] == pytest.approx(found["nbytes"] / 1e9 * 0.5)
    paths = lists[0].read_text().splitlines()
    assert set(paths) == {key for key in objects(place) if not key.startswith("log/")}
    words = shlex.split(lists[1].read_text().splitlines()[0])
    assert words == ["cp", "--raw", f"{root.url}/{paths[0]}", f"{place.url}/{paths[0]}"]
    assert plan_migration(root, place).objects == 0


def test_what_another_tool_copied_is_not_copied_again(root, place):
    shutil.copytree(f"{root.url}/data", f"{place.url}/data")
    report = migrate(root, place, Pace())
    assert (report.copied, report.failures) == (0, {})
    assert objects(place) == objects(root.store)


def test_manifest_that_lies_there_is_held_against_its_hash(root, place):
    """Its size is in no table: another tool may have copied half of it."""
    manifest = next(key for key in objects(root.store) if key.endswith(".json") and "/manifest-" in key)
    shutil.copytree(f"{root.url}/data", f"{place.url}/data")
    whole = place.get(manifest).data
    place.put(manifest, whole[:-10])
    report = migrate(root, place, Pace())
    assert list(report.failures) == [manifest]
    assert list(place.list("log/")) == []
    place.put(manifest, whole)
    assert migrate(root, place, Pace()).failures == {}
    assert objects(place) == objects(root.store)


def test_mirror_lags_by_more_than_versions(root, place, tmp_path, capsys):
    status = ["migrate", "status", place.url, "--root", root.url]
    migrate(root, place, Pace())
    assert main(status) == 0
    migrate(root, open_store(str(tmp_path / "another")), Pace())
    assert last_copied_entry(root.store, place) < root.state.n
    assert main(status) == 0, "that another mirror was made says nothing new of the root"
    root.tag("d@1", "first")
    assert main(status) == 1
    migrate(root, place, Pace())
    assert main(status) == 0


def test_how_far_a_mirror_is_takes_no_request_for_each_entry(root, place):
    counts = []
    for first in (0, 20):
        for i in range(first, first + 20):
            root.tag("d@1", f"tag-{i}")
        migrate(root, place, Pace())
        counted = ObservedStore(place)
        assert last_copied_entry(root.store, counted) == root.state.n
        counts.append(len(counted.calls))
    assert counts[0] == counts[1]


def test_memory_is_used_again_but_for_what_may_still_be_at_work():
    room = MemoryBudget(4 * 2**20)
    with room.memory(2**20) as lent:
        first, lent.is_free = lent.view.obj, True
    with room.memory(2**20 - 5, extra=3 * 2**20) as lent:  # fits with what is beside it: counted once
        assert lent.view.obj is first
        assert len(lent.view) == 2**20 - 5
    with room.memory(2**20) as lent:  # nobody said that it was free
        assert lent.view.obj is not first
        other, lent.is_free = lent.view.obj, True
    with room.memory(2**18) as lent:  # four times as large is too large
        assert lent.view.obj is not other
    with room.memory(4 * 2**20):  # what is kept makes room
        pass
    with room.memory(2**20) as lent:
        assert lent.view.obj is not other
    with room.memory(2**30) as lent:  # larger than all of it
        lent.is_free = True
    with room.for_bytes(4 * 2**20):
        pass


def test_pace_and_room():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(10, 1000, clock=lambda: now[0], sleep=sleep)
    for _ in range(21):
        pace.take(requests=1)
    assert now[0] == pytest.approx(2.0)
    pace.take(nbytes=3000)
    pace.take(nbytes=1)
    assert now[0] == pytest.approx(5.0)
    Pace(sleep=sleep).take(10**9, 10**18)
    with refusal(InvalidRuntime, what="requests_per_s", given=0):
        Pace(0)
    room, held, most = MemoryBudget(10), [0], [0]
    lock = threading.Lock()

    def hold(nbytes):
        with room.for_bytes(nbytes):
            with lock:
                held[0] += min(nbytes, 10)
                most[0] = max(most[0], held[0])
            with lock:
                held[0] -= min(nbytes, 10)

    threads = [threading.Thread(target=hold, args=(nbytes,)) for nbytes in [3, 7, 12, 4, 6, 10] * 5]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert 0 < most[0] <= 10


def test_migrate_leaves_out_objects_that_a_version_names_outside_of_data(root, place, monkeypatch, capsys):
    """Neither the mirror's own objects nor those of later versions suffer from them."""
    publish, paths = changes.publish_parts, ["log/000000000099.json", "../outside.tar", "penstock.json"]

    def write_naming(path, numbers):
        def forge_paths(root, dataset, parts, *base, **how):
            shards = [replace(shard, path=path) for shard in parts[0].shards]
            return publish(root, dataset, [replace(parts[0], shards=shards), *parts[1:]], *base, **how)

        with monkeypatch.context() as patched:  # as a writer does who keeps none of the rules
            patched.setattr(changes, "check_parts", lambda parts: parts[0].txn)
            patched.setattr(changes, "publish_parts", forge_paths)
            return write(root, numbers)

    for number, path in enumerate(paths):
        write_naming(path, range(100 + 10 * number, 105 + 10 * number))
    last = write(root, range(90, 95))
    assert main(["migrate", "run", place.url, "--root", root.url]) == 1
    said = capsys.readouterr().out
    assert "0 failed" in said
    assert all(f"d@{3 + number}: {path!r} was not copied" in said for number, path in enumerate(paths))
    assert list(place.list("log/000000000099")) == []
    mirror = loader.Root(place.url)
    assert mirror.state.n == root.state.n
    assert mirror.open("d@6").id == last.id
    assert verify(mirror, "d@2", full=True).problems == []


@pytest.mark.parametrize("back", [0, 1, 3])
def test_migrate_refuses_a_log_entry_that_is_damaged_at_its_source(root, place, back):
    """It was read before the damage, or lies before a hint that a reader begins at."""
    root.alias("d@2", "prod")
    n = root.state.n - back
    key = f"log/{n:012d}.json"
    whole = root.store.get(key).data
    at = whole.rindex(b"at_us") + 8
    root.store.put(key, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with refusal(Corrupt, what="checksum", where=f"{root.url}/{key}") as caught:
        migrate(root, place, Pace())
    assert "penstock repair" in str(caught.value)
    assert [info.key for info in place.list("log/0")] == [f"log/{i:012d}.json" for i in range(1, n)]
    root.store.put(key, whole)
    assert migrate(loader.Root(root.url), place, Pace()).failures == {}
    assert objects(place) == objects(root.store)


def test_mirror_never_has_a_run_record_without_its_plan_and_version(root, place):
    """A run decides a step, with a new version, each time that the migration lists a folder or the log."""
    steps = []

    def decide():
        step = len(steps)
        steps.append(step)
        version = write(root, range(100 + step, 101 + step))
        plan = loader.plan({"d": version}, seed=step, global_batch=1)
        body = {"format": 1, "run": "r", "step": step, "before": plan.hash, "plan": plan.save(root)}
        root.store.put_if_absent(f"follows/r/{step:019d}.json", json.dumps(body).encode())

    def decide_at_list(verb, key):
        if verb == "list" and threading.current_thread() is threading.main_thread() and len(steps) < 12:
            decide()

    decide()
    source = loader.Root(root.url)
    source.store = ObservedStore(source.store, decide_at_list)
    for _ in range(2):
        assert migrate(source, place, Pace()).failures == {}
        mirror = loader.Root(place.url)
        records = [json.loads(place.get(info.key).data) for info in place.list("follows/")]
        assert records
        for record in records:
            assert loader.open_plan(mirror, record["plan"]).hash == record["plan"]
    source.store = root.store
    assert migrate(source, place, Pace()).failures == {}
    assert [info.key for info in place.list("follows/")] == [info.key for info in root.store.list("follows/")]
    plan = plan_migration(source, place)
    assert plan.objects == 0


def test_plan_of_a_migration_counts_records_of_runs_and_lists_none(root, place, tmp_path):
    migrate(root, place, Pace())
    root.store.put("follows/r/0000000000000000000.json", b"{}")
    listing = tmp_path / "files"
    with listing.open("w") as rclone:
        assert plan_migration(root, place, rclone=rclone).objects == 1
    assert listing.read_text() == ""
