"""Real processes: killed at any step, and many that publish at once, on a disk and on S3.

`make test-full` kills at every step, as `make prove` does; here at some."""

import itertools
import os
import shutil
import signal

import pytest

import loader
from penstock.upkeep.verify.version import verify


@pytest.fixture
def killer(at_once):
    """Does a job in a process that kills itself: (exit code, the version number it says or None)."""

    def killer(**job):
        ((code, said),) = at_once("child.py", job)
        assert code in (0, -signal.SIGKILL), said
        return code, said

    return killer


def begun(url, options, properties):
    """A root with d@1: k0..k3 in parts of two."""
    root = loader.Root(url, options=options)
    with root.write("d", part_samples=2) as writer:
        for i in range(4):
            writer.add(f"k{i}", {"cls": i})
    assert len(properties.content(writer.version)) == 4
    return root


EXPECTED = {
    "write": {f"new{i}": {"cls": b"%d" % i} for i in range(6)},
    "publish": {f"new{i}": {"cls": b"%d" % i} for i in range(4)},
}


def check_after_kill(url, options, what, properties):
    """The root opens, every version verifies, the dead process's version is whole or not there, the next writer
    gets the next number. Returns whether the dead process's version is there."""
    again = loader.Root(url, options=options)
    numbers = [record.number for record in again.versions("d")]
    assert numbers in ([1], [1, 2])
    old = {f"k{i}": {"cls": b"%d" % i} for i in range(4)}
    if what == "group":
        new = {key: {**fields, "new.txt": fields["cls"]} for key, fields in old.items()}
    else:
        new = {**old, **EXPECTED[what]}
    for number, content in ((1, old), (2, new)):
        if number in numbers:
            assert verify(again, f"d@{number}", full=True).problems == []
            assert properties.content(again.open(f"d@{number}")) == content
    with again.write("d") as writer:
        writer.add("after", {"cls": 9})
    assert writer.version.number == len(numbers) + 1
    again.close()
    return len(numbers) == 2


def sweep(killer, what, roots, options, properties):
    """Kill before each verb of the store (what is there then is what the verb before it left), a fresh root each
    time, up to the first job that was not killed. Returns for each whether its version is there."""
    there = []
    for at, url in roots:
        code, said = killer(what=what, url=url, options=options, name="new", at=at, when="before")
        there.append(check_after_kill(url, options, what, properties))
        assert (said is not None) == (code == 0)
        assert there[-1] or code != 0
        if code == 0:
            break
    # Before the commit's append nothing is there, after it all is: once, without a relapse.
    assert there == sorted(there)
    assert there[-1]
    assert not there[0]
    return there


@pytest.mark.parametrize("what", ["write", "publish", "group"])
def test_process_killed_at_any_step_leaves_a_root_that_verifies(
    tmp_path, properties, killer, what, monkeypatch, at_scale
):
    """The disk is real, the kill is SIGKILL. Nothing is fsynced, which only a power cut would notice."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    begun(str(tmp_path / "begun"), {}, properties).close()
    every = at_scale(4, 1)

    def roots():
        for at in itertools.count(1, every):
            shutil.copytree(tmp_path / "begun", tmp_path / str(at))
            yield at, str(tmp_path / str(at))

    assert len(sweep(killer, what, roots(), {}, properties)) > 20 // every


def test_process_killed_on_s3_leaves_a_root_that_verifies(bucket, properties, killer, at_scale):
    url, options = bucket

    def roots():
        for at in range(2, 80, at_scale(12, 5)):
            begun(f"{url}/killed-{at}", options, properties).close()
            yield at, f"{url}/killed-{at}"

    sweep(killer, "publish", roots(), options, properties)


def publish_at_once(at_once, url, options, processes):
    """The version numbers that they say."""
    jobs = [{"what": "write", "url": url, "options": options, "name": f"p{i}-"} for i in range(processes)]
    done = at_once("child.py", *jobs)
    assert [status for status, _ in done] == [0] * processes, done
    return sorted(number for _, number in done)


def check_all_there(url, options, processes, properties):
    root = loader.Root(url, options=options)
    last = root.open(f"d@{processes}")
    expected = {f"p{p}-{i}": {"cls": b"%d" % i} for p in range(processes) for i in range(6)}
    assert properties.content(last) == expected
    lengths = [len(root.open(record.name)) for record in root.versions("d")]
    assert lengths == [6 * n for n in range(1, processes + 1)]
    assert verify(root, f"d@{processes}", full=True).problems == []
    assert {txn.status for txn in root.state.txns.values()} == {"committed"}
    root.close()


def test_20_processes_publish_at_once_on_a_disk(tmp_path, properties, at_once):
    """The root too is made by whoever comes first."""
    url = str(tmp_path / "root")
    assert publish_at_once(at_once, url, {}, 20) == list(range(1, 21))
    check_all_there(url, {}, 20, properties)


def test_processes_publish_at_once_on_s3(bucket, properties, at_once, at_scale):
    (url, options), n = bucket, at_scale(8, 20)
    assert publish_at_once(at_once, f"{url}/at-once", options, n) == list(range(1, n + 1))
    check_all_there(f"{url}/at-once", options, n, properties)


def test_two_processes_add_one_group_at_once(tmp_path, properties, at_once):
    """One wins; the other is refused by name, and nothing of it is in the version."""
    url = str(tmp_path / "root")
    begun(url, {}, properties).close()
    job = {"what": "group", "url": url, "options": {}, "name": "new"}
    done = at_once("child.py", job, job)
    assert sorted(done, key=str) == [(0, 2), (1, "loader.errors.Conflict")]
    root = loader.Root(url)
    assert [record.number for record in root.versions("d")] == [1, 2]
    assert verify(root, "d", full=True).problems == []
