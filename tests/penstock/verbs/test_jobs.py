"""`penstock jobs`: what is there of a job, and what a person can do with it."""

import json

import pytest

import loader
from penstock.compute.job import JobFolder, job_ids
from penstock.upkeep.verify.version import verify
from tests.compute.forged_copy import forged_copy
from tests.compute.job_checks import INLINE_FILE


@pytest.fixture
def job(tmp_path):
    """A verification of three shards whose second block is missing, beside one that is done; and a cluster's file."""
    root = loader.Root(tmp_path / "root")
    with root.write("d", part_samples=4) as writer:
        for i in range(12):
            writer.add(f"k{i:02d}", {"x": b"%02d" % i})
    file = tmp_path / "cluster.toml"
    file.write_text(INLINE_FILE)
    from penstock.compute.cluster import read_cluster

    verify(root, "d", full=True, cluster=read_cluster(file))
    (id_,) = job_ids(root.store)
    return JobFolder(root.store, id_), root.url, file


def test_job_is_listed_shown_and_cleared(job, cli):
    folder, root, file = job
    assert cli("jobs", "ls", root=root).out.split()[:3] == [folder.id, "verify", "d@1,"]
    shown = cli("jobs", "show", folder.id[:6], root=root).out
    assert "1 of 1 blocks done, 3 units, attempt 1" in shown
    assert "penstock.upkeep.verify.shards_job:READ_SHARDS" in shown
    told = json.loads(cli("jobs", "why", folder.id, "--cluster", file, "--json", root=root).out)
    assert (told["attempt"], told["state"]) == (1, "ended")
    assert cli("jobs", "clear", root=root).out.startswith("0 jobs")
    assert cli("jobs", "clear", "--older", "0s", root=root).out.startswith("1 jobs, ")
    assert not list(folder.store.list("jobs/"))
    assert cli("jobs", "ls", root=root).out == "no jobs\n"


def test_job_is_cancelled_and_resumed(job, cli):
    folder, root, file = job
    folder.store.delete_many([folder.key("done/0.jsonl.zst")])
    assert "is cancelled" in cli("jobs", "cancel", folder.id, "--cluster", file, root=root).out
    shown = cli("jobs", "show", folder.id, root=root).out
    assert "0 of 1 blocks done" in shown
    assert "a user cancelled it" in shown
    only_waits = cli("jobs", "attach", folder.id, "--cluster", file, root=root)
    assert (only_waits.code, "was cancelled" in only_waits.err) == (2, True)
    sha256 = folder.description().sha256
    assert f"SHA-256 {sha256}" in shown
    gone_on = cli("jobs", "attach", folder.id, "--cluster", file, "--sha256", sha256, root=root)
    assert (gone_on.code, gone_on.out) == (0, "3 units done, 0 failed\n")
    assert "restarted: block 0 (2 times)" in cli("jobs", "show", folder.id, root=root).out


def test_why_a_block_failed_is_shown(job, cli):
    folder, root, _ = job
    folder.put_log(0, 1, "OSError: no space left")
    assert cli("jobs", "logs", folder.id, "--block", 0, root=root).out == "OSError: no space left\n"
    assert "--cluster FILE" in cli("jobs", "logs", folder.id, root=root).err


def test_what_is_no_job_is_named(job, cli):
    _, root, _ = job
    wrong = cli("jobs", "show", "zz", root=root)
    assert (wrong.code, "no such job" in wrong.err) == (1, True)


@pytest.fixture
def node(tmp_path):
    """A folder of the node with a secret, and a folder of packages."""
    secrets, packages = tmp_path / "secrets", tmp_path / "packages"
    secrets.mkdir()
    packages.mkdir()
    (secrets / "key.pth").write_text("import os")
    return secrets, packages


def test_attach_begins_no_unconfirmed_job(job, node, tmp_path, cli):
    """It knows a job from its folder alone."""
    folder, root, file = job
    secrets, packages = node
    forged = forged_copy(folder.store, "ab" * 16, secrets, packages, tmp_path)
    refused = cli("jobs", "attach", "abab", "--cluster", file, root=root)
    assert (refused.code, forged.sha256 in refused.err) == (2, True)
    wrong = cli("jobs", "attach", "abab", "--cluster", file, "--sha256", "0" * 64, root=root)
    assert (wrong.code, "is not the description" in wrong.err) == (1, True)
    assert not list(packages.iterdir())
    shown = cli("jobs", "show", "abab", root=root).out
    assert f"stores: {secrets}, {packages}; SHA-256 {forged.sha256}" in shown
    vouched = cli("jobs", "attach", "abab", "--cluster", file, "--sha256", forged.sha256, root=root)
    assert (vouched.code, vouched.out) == (0, "1 units done, 0 failed\n")


def test_damaged_job_stops_no_listing(job, cli):
    folder, root, _ = job
    folder.store.put(f"jobs/{'ab' * 16}/job.json", b"{]")
    folder.store.put("jobs/no-job/x", b"")
    listed = cli("jobs", "ls", root=root)
    assert (listed.code, folder.id in listed.out) == (1, True)
    assert f"penstock jobs clear {'ab' * 16} deletes it" in listed.out
    assert "1 jobs" in cli("jobs", "clear", "--older", "0s", root=root).out
    assert list(job_ids(folder.store)) == ["ab" * 16]
    assert cli("jobs", "clear", "abab", root=root).out.startswith("1 jobs, 1 objects")
    assert list(job_ids(folder.store)) == []
