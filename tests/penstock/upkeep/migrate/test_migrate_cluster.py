"""`penstock migrate run --cluster`: the machines of a cluster leave what one process leaves."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.storage import open_store
from penstock.compute import submit
from penstock.compute.cluster import Cluster, Slot
from penstock.compute.job import JobFolder, job_ids
from penstock.compute.submit import submit_job
from penstock.upkeep.copying import copy_job
from penstock.upkeep.copying.copy_job import copy_on_cluster, migration_job, process_settings
from penstock.upkeep.copying.copy_many import Copies, Migration
from penstock.upkeep.copying.items import Item, Pace
from penstock.upkeep.copying.journal import Journal
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.migrate.prefix_copy import FOLDER, migrate_prefix
from penstock.upkeep.migrate.prefix_verify import verify_prefix
from penstock.upkeep.verify.root import verify_root
from tests.compute.forged_copy import forged_copy
from tests.mortal_store import Killed

INLINE, LOCAL = Cluster(engine="inline"), Cluster(engine="local")


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    """Three objects to a unit, two units to a block."""
    monkeypatch.setattr(copy_job, "ITEMS", 3)
    monkeypatch.setattr(submit, "MAX_UNITS", 2)


@pytest.fixture
def root(tmp_path):
    """Three versions of d, and a view."""
    root = loader.Root(tmp_path / "primary")
    for first in (0, 20):
        with root.write("d", part_samples=5) as writer:
            for i in range(first, first + 12):
                writer.add(f"k{i:02d}", {"cls": i, "bin": random.Random(i).randbytes(900)}, metadata={"i": i})
    root.exclude("d", ["k01"], reason="blurred")
    root.open("d@1").where("i < 7").select("cls")._table  # noqa: B018 - stores the view
    return root


@pytest.fixture
def places(tmp_path):
    """A plain prefix of 21 objects, and an empty place."""
    source, target = open_store(str(tmp_path / "from")), open_store(str(tmp_path / "to"))
    for i in range(20):
        source.put(f"v/{i:03d}.bin", random.Random(i).randbytes(i * 11))
    source.put("v-ä/ü.bin", b"")
    return source, target


def objects(store, *, log=True):
    """Key -> bytes of what a migration of a root leaves, without notes and the marker."""
    return {
        info.key: bytes(store.get(info.key).data)
        for info in store.list("")
        if not info.key.startswith(("jobs/", "migrations/", "penstock.json"))
        and (log or not info.key.startswith("log/"))
    }


def manifest(store):
    """key -> (bytes, sha256), of all pieces of a prefix's manifest; no run has left lines."""
    keys = [info.key for info in store.list(FOLDER) if not info.key.startswith(f"{FOLDER}jobs/")]
    assert not [key for key in keys if key.endswith(".jsonl")]
    tables = [pq.read_table(Path(store.url) / key) for key in keys if key.endswith(".parquet")]
    return {row["key"]: (row["nbytes"], row["sha256"]) for table in tables for row in table.to_pylist()}


def dies(monkeypatch, after):
    """Let who waits die when it notes so many objects; returns how it lives again."""
    add, n = Journal.add, iter(range(after))

    def last_words(journal, copied):
        if next(n, None) is None:
            raise Killed
        add(journal, copied)

    monkeypatch.setattr(Journal, "add", last_words)
    return lambda: monkeypatch.setattr(Journal, "add", add)


@pytest.mark.parametrize("cluster", [INLINE, LOCAL], ids=["inline", "local"])
def test_mirror_is_the_same_byte_for_byte(root, tmp_path, cluster):
    here, there = (open_store(str(tmp_path / name)) for name in ("here", "there"))
    alone = migrate(root, here, Pace())
    together = migrate(loader.Root(root.url), there, Pace(), cluster=cluster)
    assert (together.copied, together.nbytes, together.failures) == (alone.copied, alone.nbytes, {})
    assert objects(there, log=False) == objects(here, log=False)
    assert verify_root(loader.Root(there.url), full=True).problems == []
    (job,) = job_ids(there)
    assert len(JobFolder(there, job).done()) > 2
    assert migrate(loader.Root(root.url), there, Pace(), cluster=cluster).copied == 0
    assert len(list(job_ids(there))) == 1


def test_what_cannot_be_copied_is_named_and_the_next_run_copies_it_alone(root, tmp_path):
    paths = sorted(str(path.relative_to(root.url)) for path in Path(root.url).rglob("*.tar"))
    gone, changed = (Path(root.url) / path for path in paths[:2])
    whole = {path: path.read_bytes() for path in (gone, changed)}
    gone.unlink()
    changed.write_bytes(whole[changed][:-1] + b"x")
    here, there = (open_store(str(tmp_path / name)) for name in ("here", "there"))
    alone, together = (
        migrate(root, one, Pace(), cluster=cluster) for one, cluster in ((here, None), (there, INLINE))
    )
    assert together.failures == alone.failures
    assert set(together.failures) == set(paths[:2])
    assert objects(there) == objects(here)
    for path, data in whole.items():
        path.write_bytes(data)
    again = migrate(root, there, Pace(), cluster=INLINE)
    assert (again.copied, again.failures) == (2, {})
    assert verify_root(loader.Root(there.url), full=True).problems == []
    assert len(list(job_ids(there))) == 2


def test_done_blocks_are_the_journal_of_a_run_that_was_killed(root, tmp_path, monkeypatch):
    place = open_store(str(tmp_path / "mirror"))
    lives = dies(monkeypatch, 4)
    with pytest.raises(Killed):
        migrate(root, place, Pace(), cluster=INLINE)
    lives()
    (job,) = job_ids(place)
    folder = JobFolder(place, job)
    n_done = len(folder.done())
    place.delete_many([folder.key("done/1.jsonl.zst")])  # its runner was killed, too
    before = {info.key: info.etag for info in place.list("data/")}
    report = migrate(root, place, Pace(), cluster=INLINE)
    assert (report.copied, report.failures) == (0, {})
    assert {info.key: info.etag for info in place.list("data/")} == before
    assert (list(job_ids(place)), len(folder.done())) == ([job], n_done)
    assert verify_root(loader.Root(place.url), full=True).problems == []


KILLED = """
import sys, loader
from loader.storage import open_store
from penstock.compute.cluster import Cluster
from penstock.upkeep.copying import copy_job
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.mirror_update import migrate
copy_job.ITEMS = 3
migrate(loader.Root(sys.argv[1]), open_store(sys.argv[2]), Pace(requests_per_s=60), cluster=Cluster(engine="local"))
"""


def test_run_that_was_killed_ends_in_the_same_target(root, tmp_path):
    here, there = (open_store(str(tmp_path / name)) for name in ("here", "there"))
    migrate(root, here, Pace())
    with subprocess.Popen([sys.executable, "-c", KILLED, root.url, there.url]) as process:
        while process.poll() is None and not list(there.list("data/")):
            pass
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(loader.errors.VersionNotFound):  # the log comes last
        loader.Root(there.url).open("d@1")
    assert migrate(root, there, Pace(requests_per_s=60), cluster=LOCAL).failures == {}
    assert len(list(job_ids(there))) == 1
    assert objects(there, log=False) == objects(here, log=False)
    assert list(there.list("migrations/")) == []


def test_prefix_keeps_every_hash_over_a_kill(places, monkeypatch):
    source, target = places
    lives = dies(monkeypatch, 4)
    with pytest.raises(Killed):
        migrate_prefix(source, target, Pace(), cluster=INLINE)
    lives()
    report = migrate_prefix(source, target, Pace(), cluster=INLINE)
    assert (report.copied, report.skipped, report.unhashed) == (0, 21, 0)
    there = manifest(target)
    assert verify_prefix(source, target, full=True).problems == {}
    assert manifest(target) == there
    assert all(sha256 for _, sha256 in there.values())
    source.put("v/003.bin", b"another")
    source.put("v/new.bin", b"new")
    changed = migrate_prefix(source, target, Pace(), cluster=INLINE)
    assert (changed.copied, list(changed.failures)) == (1, ["v/003.bin"])
    assert "--update" in changed.failures["v/003.bin"]
    assert migrate_prefix(source, target, Pace(), cluster=INLINE, replace=True).failures == {}
    assert bytes(target.get("v/003.bin").data) == b"another"


def test_job_without_a_note_is_named_and_everything_is_copied(places, tmp_path, caplog):
    """Another process submits units of its own at that moment, and the job of the next attempt was forged."""
    source, target = places
    target.put_if_absent(f"{FOLDER}source.json", b"{}")
    migration = Migration(source=source, target=target, scratch=None, notes=FOLDER, pace=Pace(), at_once=2)
    every = [Item(path=info.key, nbytes=info.nbytes, etag=info.etag) for info in source.list("")]
    report, asked, jobs = Copies(target=target.url), [], migration_job(migration, 0).store
    secrets, packages = tmp_path / "secrets", tmp_path / "packages"
    secrets.mkdir()
    packages.mkdir()
    (secrets / "key.pth").write_text("import os")

    def items():
        if not asked:  # at this moment another process submits two of them
            asked.append(True)
            submit_job(
                migration_job(migration, 0),
                copy_job._Units(iter(every[:2]), process_settings(migration, INLINE)),
            )
            forged_copy(jobs, migration_job(migration, 1).id, secrets, packages, tmp_path)
        return (item for item in every if journal.find(item.path) is None)

    with Journal(target, FOLDER) as journal:
        for copied in copy_on_cluster(INLINE, migration, items, journal, report):
            journal.add(copied)
    assert {info.key for info in target.list("v")} == {item.path for item in every}
    assert report.failures == {}
    assert not list(packages.iterdir())
    for attempt in (0, 1):
        assert f"jobs/{migration_job(migration, attempt).id}/" in caplog.text


def test_unit_that_no_worker_survived_names_its_objects(places, monkeypatch):
    source, target = places

    def breaks(items, *_, **__):
        raise RuntimeError(f"broke at {next(items).path}")

    monkeypatch.setattr(copy_job, "copy_here", breaks)
    report = migrate_prefix(source, target, Pace(), cluster=INLINE)
    assert len(report.failures) == 21
    assert "not copied to its end: exception: RuntimeError: broke at v" in report.failures["v/001.bin"]


def test_each_process_has_its_share_of_the_limits(places):
    source, target = places
    pace = Pace(requests_per_s=120.0, bytes_per_s=6e6)
    migration = Migration(source=source, target=target, scratch=None, pace=pace, at_once=2)
    slot = Slot(number=5, cpus=4, memory="6GiB")  # three processes, of 2 GiB each
    settings = process_settings(migration, Cluster(engine="slurm", slot=slot))
    assert (settings.requests_per_s, settings.bytes_per_s) == (8.0, 4e5)
    unit = copy_job.CopyUnit(settings=settings, items=[Item(path="a", nbytes=40_000_000)])
    assert unit.waits_s == 100.0
    assert copy_job.COPY.limit_s(unit) > 1000
    free = Migration(source=source, target=target, scratch=None, pace=Pace(), at_once=2)
    assert process_settings(free, INLINE).requests_per_s is None
    assert migration_job(free, 0).id != migration_job(migration, 0).id


def test_from_bucket_to_bucket_no_secret_lies_in_a_job(s3, monkeypatch):
    """Keys given as options stay with who waits; a node has those of its environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3["secret"])
    root = loader.Root("s3://bucket/clustered/root", options=s3)
    with root.write("d", part_samples=2) as writer:
        for i in range(6):
            writer.add(f"k{i}", {"cls": i})
    mirror, plain = (open_store(f"s3://bucket/clustered/{name}", s3) for name in ("mirror", "plain"))
    assert migrate(root, mirror, Pace(), cluster=INLINE).failures == {}
    assert verify_root(loader.Root(mirror.url, options=s3), full=True).problems == []
    raw = open_store("s3://bucket/clustered/root/data", s3)
    assert migrate_prefix(raw, plain, Pace(), cluster=INLINE).failures == {}
    assert verify_prefix(raw, plain, full=True).problems == {}
    jobs = [(mirror, "jobs/"), (plain, f"{FOLDER}jobs/")]
    texts = [bytes(store.get(info.key).data) for store, prefix in jobs for info in store.list(prefix)]
    texts += [
        bytes(pa.CompressedInputStream(pa.BufferReader(one), "zstd").read())
        for one in texts
        if one[:2] == b"(\xb5"
    ]
    assert b"clustered/mirror" in b"".join(texts)
    assert not [one for one in texts if s3["secret"].encode() in one or s3["key"].encode() in one]


def test_verb_takes_a_cluster(root, places, tmp_path, cli):
    file = tmp_path / "here.toml"
    file.write_text('engine = "inline"\n')
    mirror = tmp_path / "mirror"
    ran = cli("migrate", "run", mirror, "--cluster", file, "--json", root=root.url)
    assert (ran.code, json.loads(ran.out)["failures"]) == (0, {})
    assert cli("verify", root=mirror).code == 0
    source, target = places
    assert cli("migrate", "run", target.url, "--from", source.url, "--cluster", file).code == 0
    assert cli("migrate", "verify", target.url, "--from", source.url, "--full").code == 0
    assert "migrate " in cli("jobs", "ls", root=f"{target.url}/{FOLDER.rstrip('/')}").out
    file.write_text('engine = "abacus"\n')
    wrong = cli("migrate", "run", mirror, "--cluster", file, root=root.url)
    assert (wrong.code, "abacus" in wrong.err) == (2, True)
