"""Real processes that append to one root at once, on a disk and on S3, and that are killed at every step."""

import hashlib
import signal

import pytest

from loader.dataset.log.log import Log
from loader.dataset.log.rules import CommitBody
from loader.storage import open_store

PUBLISHER = "logmodel/publisher.py"


def publish_at_once(at_once, url, options, processes, versions):
    """Everything the processes say they committed."""
    job = {"url": url, "options": options, "dataset": "photos", "versions": versions}
    done = at_once(PUBLISHER, *[job] * processes)
    assert [status for status, _ in done] == [0] * processes, done
    return [version for _, said in done for version in said]


def check(log, said, versions):
    """Every version that was said is in the log, numbered without a gap, and nothing else is."""
    state = log.verify()
    assert [v.number for v in state.versions("photos")] == list(range(1, versions + 1))
    assert {v.txn: v.number for v in state.versions("photos")} == {v["txn"]: v["number"] for v in said}
    assert len(said) == versions
    assert state.n == 2 * versions
    assert log.state == state


def test_20_processes_on_a_disk(tmp_path, at_once):
    said = publish_at_once(at_once, str(tmp_path), {}, processes=20, versions=2)
    check(Log(open_store(str(tmp_path))), said, 40)


def test_8_processes_on_s3(bucket, at_once):
    url, options = bucket[0] + "/log", bucket[1]
    said = publish_at_once(at_once, url, options, processes=8, versions=1)
    store = open_store(url, options)
    check(Log(store), said, 8)
    store.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_process_killed_at_any_step_leaves_a_usable_log(tmp_path, when, at_once):
    committed, at, code = [], 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        at += 1
        url = str(tmp_path / str(at))
        store = open_store(url)
        publish(Log(store))
        job = {"url": url, "options": {}, "dataset": "photos", "versions": 1, "at": at, "when": when}
        ((code, said),) = at_once(PUBLISHER, job)
        assert code in (0, -signal.SIGKILL), said
        state = Log(store).verify()
        committed.append(len(state.versions("photos")) - 1)
        assert len(said or []) == (code == 0)
        assert publish(Log(store)) == 2 + committed[-1]
        assert Log(store).verify() == Log(store).state
        store.close()
    # At: the listing of hints, the probes of entries 1, 2, 3, the listing of what is behind; that again, the begin; the
    # probe of 4, the listing behind 3, the commit.
    assert committed == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1 if when == "after" else 0, 1]


def publish(log):
    txn = log.begin("photos").txn
    return log.commit(txn, lambda state: build(state, txn)).number


def build(state, txn):
    newest = state.newest("photos")
    sha256 = hashlib.sha256(txn.encode()).hexdigest()
    return CommitBody(
        id=f"v-{sha256}", manifest="m.json", sha256=sha256, parent=newest and newest.id, denies=0
    )
