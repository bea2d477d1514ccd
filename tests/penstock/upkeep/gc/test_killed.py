"""A collector that is killed in the middle of a sweep: SIGKILL at each verb of the store, on a disk and on S3."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import loader
from penstock.upkeep.gc.deleted_record import read_swept

TESTS = Path(__file__).parents[3]


def begun(root, properties):
    """A root of which d@1 has been condemned for a while."""
    properties.two_versions(root)
    properties.look(root, 0)
    root.close()


def run_all(jobs):
    """(exit status, what it says) of a process for each job; all at once."""
    command = [
        sys.executable,
        TESTS / "dataset" / "forks.py",
        TESTS / "penstock" / "upkeep" / "gc" / "killed.py",
    ]
    done = subprocess.run(command, input=json.dumps(jobs) + "\n", capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def check(root, before, properties):
    """What is needed is there; what is gone is on record; the next sweep does the rest. Returns what had gone."""
    two = root.record("d@2")
    assert properties.is_whole(root, two)
    gone = before - properties.there(root)
    assert gone <= {key for table in read_swept(root.store) for key in table["key"].to_pylist()}
    properties.look(root, 81)
    assert properties.there(root) == properties.needed(root, two)
    root.close()
    return len(gone)


def swept_in_parts(urls, options, before, properties):
    jobs = [{"url": str(url), "options": options, "at": at, "when": when} for (at, when), url in urls.items()]
    done = run_all(jobs)
    assert {status for status, _ in done} <= {0, -signal.SIGKILL}
    assert -signal.SIGKILL in {status for status, _ in done}
    gone = [check(loader.Root(url, options=options), before, properties) for url in urls.values()]
    assert 0 in gone
    assert len(set(gone)) > 2, "killed in the middle as well"
    return done


def test_killed_at_any_step_on_a_disk(tmp_path, properties, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    root = loader.Root(tmp_path / "begun")
    begun(root, properties)
    urls = {(at, "before"): tmp_path / str(at) for at in range(14, 46, 4)}
    for url in urls.values():
        shutil.copytree(tmp_path / "begun", url)
    swept_in_parts(urls, {}, properties.there(root), properties)


@pytest.mark.server
def test_killed_at_any_step_on_s3(s3, properties):
    first = loader.Root("s3://bucket/collected/begun", options=s3)
    begun(first, properties)
    everything = {info.key: first.store.get(info.key).data for info in first.store.list("")}
    before, urls = properties.there(first), {}
    for at in (1, 9, 14, 20, 26, 30, 36, 46):
        for when in ("before", "after"):
            url = urls[at, when] = f"s3://bucket/collected/{at}-{when}"
            copy = loader.Root(url, options=s3)
            for key, data in everything.items():
                copy.store.put(key, data)
            copy.close()
    first.close()
    swept_in_parts(urls, s3, before, properties)
