"""`penstock jobs`: what is there of a job, and what a person can do with it."""

import json

import pytest

import loader
from penstock.compute.job import JobFolder, job_ids
from penstock.verify.version import verify
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


def test_a_job_is_listed_shown_and_cleared(job, cli):
    folder, root, file = job
    assert cli("jobs", "ls", root=root).out.split()[:3] == [folder.id, "verify", "d@1,"]
    shown = cli("jobs", "show", folder.id[:6], root=root).out
    assert "1 of 1 blocks done, 3 units, attempt 1" in shown
    assert "penstock.verify.shards_job:READ_SHARDS" in shown
    told = json.loads(cli("jobs", "why", folder.id, "--cluster", file, "--json", root=root).out)
    assert (told["attempt"], told["state"]) == (1, "ended")
    assert cli("jobs", "clear", root=root).out.startswith("0 jobs")
    assert cli("jobs", "clear", "--older", "0s", root=root).out.startswith("1 jobs, ")
    assert not list(folder.store.list("jobs/"))
    assert cli("jobs", "ls", root=root).out == "no jobs\n"


def test_a_job_is_cancelled_and_gone_on_with(job, cli):
    folder, root, file = job
    folder.store.delete_many([folder.key("done/0.jsonl.zst")])
    assert "was ended" in cli("jobs", "cancel", folder.id, "--cluster", file, root=root).out
    shown = cli("jobs", "show", folder.id, root=root).out
    assert "0 of 1 blocks done" in shown
    assert "somebody ended it" in shown
    gone_on = cli("jobs", "attach", folder.id, "--cluster", file, root=root)
    assert (gone_on.code, gone_on.out) == (0, "3 units done, 0 failed\n")
    assert "begun again: block 0 (2 times)" in cli("jobs", "show", folder.id, root=root).out


def test_why_a_block_failed_is_shown(job, cli):
    folder, root, _ = job
    folder.put_log(0, 1, "OSError: no space left")
    assert cli("jobs", "logs", folder.id, "--block", 0, root=root).out == "OSError: no space left\n"
    assert "--cluster FILE" in cli("jobs", "logs", folder.id, root=root).err


def test_what_is_no_job_is_named(job, cli):
    _, root, _ = job
    wrong = cli("jobs", "show", "zz", root=root)
    assert (wrong.code, "no such job" in wrong.err) == (1, True)
