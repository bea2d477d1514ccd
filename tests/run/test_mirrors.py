"""A training from a root with mirrors: the same batches whichever store serves them, and whatever becomes of one."""

import json
import logging
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import loader
from loader.errors import (
    Conflict,
    Corrupt,
    FormatTooNew,
    InvalidStore,
    ObjectNotFound,
    Transient,
    VersionNotFound,
)
from tests.refusals import refusal

STEPS, N = 22, 220


@pytest.fixture
def primary(tmp_path, samples):
    """A root on a disk, with a version of dataset "photos"."""
    root = loader.Root(str(tmp_path / "primary"))
    samples.write(root, "photos", range(N), part_samples=10)
    return root


@pytest.fixture
def mirror(primary, tmp_path):
    """A copy of it, as `penstock migrate` makes one."""
    shutil.copytree(primary.url, tmp_path / "mirror")
    return tmp_path / "mirror"


@pytest.fixture
def serve_folder(monkeypatch):
    """serve_folder(folder) -> (process, URL, options) of a process that serves the folder as a bucket."""
    running = []
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")  # worker processes find them there
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")

    def serve(folder):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.run.folder_server", str(folder)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        port = int(process.stdout.readline())
        return (
            process,
            "s3://bucket",
            {"retry_base_s": 0.001, "retry_deadline_s": 4, "endpoint_url": f"http://127.0.0.1:{port}"},
        )

    yield serve
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def make_plan(root):
    return loader.plan({"photos": root.open("photos@1")}, seed=3, global_batch=10)


def digests(root, **options):
    with loader.Loader(make_plan(root), 0, 1, steps=STEPS, framework="numpy", **options) as batches:
        return [batch.digest for batch in batches], batches.metrics()


@pytest.fixture
def primary_digests(primary):
    return digests(primary)[0]


@pytest.mark.parametrize(
    "options", [{"workers": 2}, {"workers": 2, "cache": 0}, {"executor": "processes", "workers": 1}]
)
def test_store_that_is_killed_in_mid_training_costs_no_batch(
    primary, mirror, serve_folder, primary_digests, options, caplog
):
    process, url, own = serve_folder(primary.url)
    _, mirror_url, mirror_own = serve_folder(mirror)
    root = loader.Root(url, options=own, mirrors=[(mirror_url, mirror_own)])
    root.store._members._order = (
        root.store._members.all
    )  # the primary is the nearest, however it answers just now
    plan = make_plan(root)
    if "executor" in options:  # the workers open the stores themselves
        process.kill()
    with loader.Loader(plan, 0, 1, steps=STEPS, framework="numpy", prefetch=0, **options) as batches:
        if "executor" not in options:
            done = batches._assembler._reads.done

            def kill_at_step(step):  # before anything is read ahead
                process.kill()
                process.wait()
                done(step)

            batches._assembler._reads.done = kill_at_step
        with caplog.at_level(logging.WARNING, "loader.storage"):
            found = [batch.digest for batch in batches]
        metrics = batches.metrics()
    assert found == primary_digests
    if "executor" not in options:
        passed_over = [one for one in caplog.messages if "passed over" in one]
        assert len(passed_over) <= 1  # one warning, not one for each read
        assert metrics["fallbacks_total"] > 0, root.store.served
    root.close()


def test_opening_and_planning_go_on_without_the_primary(primary, mirror, serve_folder, primary_digests):
    process, url, own = serve_folder(primary.url)
    process.kill()
    process.wait()
    with loader.Root(url, options=own, mirrors=[str(mirror)]) as root:
        assert digests(root)[0] == primary_digests
    _, mirror_url, mirror_own = serve_folder(mirror)
    with loader.Root(url, options=own, mirrors=[(mirror_url, mirror_own)]) as root:
        assert digests(root)[0] == primary_digests


def test_mirror_that_lags_lends_what_it_has(primary, mirror, samples, tmp_path):
    samples.write(primary, "photos", range(N, N + 30), part_samples=10)
    two = loader.Root(primary.url).open("photos@2")
    with loader.Root(primary.url, mirrors=[str(mirror)]) as root:
        root.store._members._order = list(reversed(root.store._members.all))  # the mirror is the nearest
        assert root.open("photos@latest").id == two.id
        plan = loader.plan({"photos": root.open("photos@2")}, seed=3, global_batch=10)
        with loader.Loader(plan, 0, 1, steps=25, framework="numpy") as batches:
            ids = {key for batch in batches for _, key in batch.ids}
        assert len(ids) == N + 30
        assert min(reads for _, reads in root.store.served) > 0


LATER = ["photos@2", "photos@paper", "photos@prod", "v-" + "0" * 64, "other", "other@1"]


@pytest.fixture
def lagging(primary, mirror, samples):
    """The mirror, marked as one, with the log up to entry 2; the primary has a version, a tag and an alias more."""
    marker = mirror / "penstock.json"
    marker.write_text(marker.read_text().replace("{", f'{{"mirror_of":"{primary.url}",', 1))
    samples.write(primary, "photos", range(N, N + 10), part_samples=10)
    primary.tag("photos@2", "paper")
    primary.alias("photos@2", "prod")
    return mirror


@pytest.mark.parametrize("ref", LATER)
def test_what_a_mirror_does_not_have_yet_is_said_to_be_one_that_lags(primary, lagging, ref):
    said = (
        f"; {lagging} is a mirror of {primary.url}, copied up to log entry 2: what is newer comes by penstock migrate "
        f"run {lagging} --root {primary.url}"
    )
    root = loader.Root(str(lagging))
    for ask in (root.open, root.record, lambda ref: root.versions("other")):
        with pytest.raises(VersionNotFound, match=re.escape(said)):
            ask(ref)
    assert root.open("photos@1").id == primary.record("photos@1").id


def test_nothing_is_said_of_mirrors_where_the_primary_answers(primary, lagging):
    for root in (primary, loader.Root(primary.url, mirrors=[str(lagging)])):  # where the mirror is read first
        for ask in (lambda root: root.open("photos@9"), lambda root: root.versions("other")):
            with pytest.raises(VersionNotFound) as caught:
                ask(root)
            assert "a mirror" not in str(caught.value)
        assert root.open("photos@2").number == 2


def test_lagging_mirror_says_so_without_the_primary(lagging, serve_folder):
    process, url, own = serve_folder(lagging)
    process.kill()
    process.wait()
    with loader.Root(url, options=own, mirrors=[str(lagging)]) as root:
        said = f"its log is read from a mirror ({lagging}), which has it up to entry 2"
        for ask in (root.open, root.record, lambda ref: root.versions("other")):
            with pytest.raises(
                VersionNotFound, match=f"does not answer, and {re.escape(said)}.* --root s3://bucket"
            ):
                ask("photos@2")
        assert len(root.open("photos@1")) == N


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_wrong_bytes_in_a_mirror_change_no_batch(primary, mirror, serve_folder, primary_digests, executor):
    """Every shard, index, table, manifest and log entry of the nearest store has a flipped byte."""
    chance = random.Random(5)
    for path in mirror.rglob("*"):
        if path.is_file() and path.name != "penstock.json":
            data = bytearray(path.read_bytes())
            data[chance.randrange(len(data) // 2, len(data))] ^= 4
            path.write_bytes(data)
    _, url, own = serve_folder(primary.url)
    with loader.Root(url, options=own, mirrors=[str(mirror)]) as root:
        found, metrics = digests(root, executor=executor, workers=1)
    assert found == primary_digests
    assert metrics["substituted_total"] == 0
    with pytest.raises((Corrupt, FormatTooNew)):  # it may be the entry's format that was hit
        loader.Root(str(mirror)).open("photos@1")


def test_near_folder_is_mapped_and_a_shard_that_goes_missing_is_read_elsewhere(
    primary, mirror, serve_folder, primary_digests
):
    _, url, own = serve_folder(primary.url)
    with loader.Root(url, options=own, mirrors=[str(mirror)]) as root:
        found, metrics = digests(root)
        assert found == primary_digests
        assert metrics["fallbacks_total"] == 0
        with loader.Loader(
            make_plan(root), 0, 1, steps=STEPS, framework="numpy", workers=1, prefetch=0
        ) as batches:
            found = []
            for batch in batches:
                found.append(batch.digest)
                if batch.step == 2:
                    for path in mirror.rglob("*.tar"):
                        path.unlink()
            assert batches.metrics()["fallbacks_total"] > 0
        assert found == primary_digests


def test_publishing_goes_to_the_primary_and_never_to_a_mirror(primary, mirror, samples):
    marker = mirror / "penstock.json"
    marker.write_text(marker.read_text().replace("{", '{"mirror_of":"s3://bucket/primary",', 1))
    before = sorted(mirror.rglob("*"))
    with loader.Root(primary.url, mirrors=[str(mirror)]) as root:
        assert samples.write(root, "photos", range(N, N + 10)).number == 2
        root.alias("photos@2", "prod")
    assert sorted(mirror.rglob("*")) == before
    alone = loader.Root(str(mirror))
    assert alone.open("photos@1").id == primary.open("photos@1").id
    for write in (
        lambda: samples.write(alone, "photos", range(N + 20, N + 30)),
        lambda: alone.retire("photos@1", reason="x"),
        lambda: alone.tag("photos@1", "x"),
    ):
        with refusal(Conflict, what="mirror", accepted="s3://bucket/primary"):
            write()


@pytest.fixture
def mirror_pair(tmp_path, samples):
    """(primary in memory, its mirror in a folder, which is the nearest), with a version of dataset "photos"."""
    primary = loader.Root(f"memory://far-primary-of-{tmp_path.name}")
    samples.write(primary, "photos", range(20))
    for info in primary.store.list():
        path = tmp_path / "near" / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(primary.store.get(info.key).data)
    marker = tmp_path / "near" / "penstock.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "mirror_of": primary.url}))
    return primary, tmp_path / "near"


def test_with_a_mirror_as_the_nearest_publishing_goes_to_the_primary(mirror_pair, samples):
    primary, near = mirror_pair
    before = sorted(near.rglob("*"))
    with loader.Root(primary.url, mirrors=[near]) as root:
        assert root.open("photos@1").id == primary.open("photos@1").id
        assert root.store.served[1][1] > 0  # (the mirror was read)
        root.create()
        assert root.mirror_of is None
        assert samples.write(root, "photos", range(20, 30)).number == 2
        root.tag("photos@2", "good")
    assert sorted(near.rglob("*")) == before
    assert loader.Root(primary.url).open("photos@good").number == 2


def test_mirror_is_not_written_to_because_its_primary_is_nearer(mirror_pair, tmp_path, samples):
    primary, near = mirror_pair
    far = loader.Root(f"memory://far-mirror-of-{tmp_path.name}")
    for path in near.rglob("*"):
        if path.is_file():
            far.store.put(str(path.relative_to(near)), path.read_bytes())
    marker = near / "penstock.json"
    said = json.loads(marker.read_text())
    del said["mirror_of"]
    marker.write_text(json.dumps(said))
    before = [info.key for info in far.store.list()]
    with loader.Root(far.url, mirrors=[near]) as root:
        assert root.mirror_of == primary.url
        for write in (
            root.create,
            lambda: root.tag("photos@1", "x"),
            lambda: samples.write(root, "photos", range(3)),
        ):
            with refusal(Conflict, what="mirror", given=far.url, accepted=primary.url):
                write()
    assert [info.key for info in far.store.list()] == before


def test_ledgers_are_read_from_the_primary_alone(primary, mirror, monkeypatch):
    root = loader.Root(primary.url, mirrors=[str(mirror)])
    plan = make_plan(root)
    assert loader.read_ledger(root, plan) == []

    def raise_transient(*_):
        raise Transient("the primary: told so", what="primary")

    monkeypatch.setattr(root.store.primary, "list", raise_transient)
    with refusal(Transient, what="primary"):
        loader.read_ledger(root, plan)


def test_another_root_is_refused(primary, tmp_path, samples):
    other = loader.Root(str(tmp_path / "other"))
    samples.write(other, "photos", range(3))
    with refusal(InvalidStore, what="mirror", where=f"{tmp_path}/other"):
        loader.Root(primary.url, mirrors=[other.url]).open("photos@latest")


def test_no_store_has_the_shard(primary, mirror, tmp_path):
    for folder in (primary.url, str(mirror)):
        for path in Path(folder).rglob("*.tar"):
            os.unlink(path)
    with (
        loader.Root(primary.url, mirrors=[str(mirror)]) as root,
        refusal(ObjectNotFound, what="object", within="field 'cls'"),
    ):
        digests(root)


def test_version_travels_with_its_mirrors(primary, mirror, serve_folder):
    _, url, own = serve_folder(primary.url)
    with loader.Root(url, options=own, mirrors=[str(mirror)]) as root:
        again = pickle.loads(pickle.dumps(root))  # noqa: S301
        assert [one.url for one in again.store.stores] == ["s3://bucket", str(mirror)]
