"""Real processes that append to one root at once, on a disk and on S3, and that are killed at every step."""

import hashlib
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from loader.dataset.decide import CommitBody
from loader.dataset.log import Log
from loader.storage import open_store

PUBLISHER = str(Path(__file__).parent / "logmodel" / "publisher.py")


def start(url, options, versions, *kill):
    return subprocess.Popen(
        [sys.executable, PUBLISHER, url, json.dumps(options), "photos", str(versions), *map(str, kill)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    """(exit code, the versions it says it committed); raises when it failed in any other way than by kill."""
    out, err = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), err
    return process.returncode, [json.loads(line) for line in out.splitlines() if line != "ready"]


def publish_at_once(url, options, processes, versions):
    """Everything the processes say they committed. They start when all of them are ready."""
    running = [start(url, options, versions) for _ in range(processes)]
    for process in running:
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for process in running:
        process.stdin.write("go\n")
        process.stdin.flush()
    return [version for process in running for version in ended(process)[1]]


def check(log, said, versions):
    """Every version that was said is in the log, numbered without a gap, and nothing else is."""
    state = log.verify()
    assert [v.number for v in state.versions("photos")] == list(range(1, versions + 1))
    assert {v.txn: v.number for v in state.versions("photos")} == {v["txn"]: v["number"] for v in said}
    assert len(said) == versions
    assert state.n == 2 * versions
    assert log.state == state


def test_20_processes_on_a_disk(tmp_path):
    said = publish_at_once(str(tmp_path), {}, processes=20, versions=2)
    check(Log(open_store(str(tmp_path))), said, 40)


@pytest.fixture
def bucket():
    """(url, options) of a bucket that answers one request at a time: moto looks whether a key is there and
    then writes it, and two threads could do that at once, which no real store does."""
    import boto3
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_at_a_time(environ, start_response):
        with turn:
            return list(app(environ, start_response))

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    options = {"region": "us-east-1", "endpoint": endpoint, "access_key_id": "a", "secret_access_key": "b"}
    client = boto3.client(
        "s3",
        region_name="us-east-1",
        endpoint_url=endpoint,
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    client.create_bucket(Bucket="history")
    client.close()
    yield "s3://history/root", options
    server.shutdown()
    thread.join()
    server.server_close()


def test_8_processes_on_s3(bucket):
    url, options = bucket
    said = publish_at_once(url, options, processes=8, versions=1)
    store = open_store(url, options)
    check(Log(store), said, 8)
    store.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_killed_at_any_step_leaves_a_log_that_goes_on(tmp_path, when):
    committed, at, code = [], 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        at += 1
        url = str(tmp_path / str(at))
        store = open_store(url)
        publish(Log(store))
        process = start(url, {}, 1, at, when)
        process.stdin.write("go\n")
        code, said = ended(process)
        state = Log(store).verify()
        committed.append(len(state.versions("photos")) - 1)
        assert len(said) == (code == 0)
        assert publish(Log(store)) == 2 + committed[-1]
        assert Log(store).verify() == Log(store).state
        store.close()
    # At: the listing of hints, the probes of entries 1, 2, 3, the begin, the probe of 4, the commit.
    assert committed == [0, 0, 0, 0, 0, 0, 1 if when == "after" else 0, 1]


def publish(log):
    txn = log.begin("photos").txn
    return log.commit(txn, lambda state: build(state, txn)).number


def build(state, txn):
    newest = state.newest("photos")
    sha256 = hashlib.sha256(txn.encode()).hexdigest()
    return CommitBody(
        id=f"v-{sha256}", manifest="m.json", sha256=sha256, parent=newest and newest.id, denies=0
    )
