"""Ctrl-C ends a training at once, though a transform hangs or a store does not answer."""

import json
import signal
import subprocess
import sys
import threading

import pytest

import loader
from tests.run.range_server import RangeServer
from tests.servers.patience import PATIENCE_S

TRAIN = """
import faulthandler, json, os, signal, sys, threading
import loader

faulthandler.dump_traceback_later(110)
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a script it would be ignored

url, options, workers, how = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
plan = loader.plan({"photos": loader.Root(url, options=options).open("photos@1")}, seed=8, global_batch=5)

def stuck(sample, rng):
    os.write(1, b"stuck\\n")
    threading.Event().wait()

batches = loader.Loader(
    plan, 0, 1, framework="numpy", executor="threads", workers=workers, cache=0, transform=None if options else stuck
)
if how == "with":
    with batches:
        next(batches)
next(batches)
"""


def interrupt_training(process):
    """(exit status, last line of stderr) of a training that gets Ctrl-C; a process that does not end fails the test."""
    process.send_signal(signal.SIGINT)
    try:
        err = process.communicate(timeout=PATIENCE_S)[1]
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"still there after Ctrl-C: {process.communicate()[1]}")
    finally:
        process.kill()
    return process.returncode, err.splitlines()[-1]


def train(*arguments):
    command = [sys.executable, "-c", TRAIN, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_transform_that_hangs(tmp_path, samples):
    root = loader.Root(str(tmp_path / "root"))
    samples.write(root, "photos", range(10), fields=("cls",))
    process = train(root.url, "{}", "2", "alone")
    assert process.stdout.readline() == "stuck\n"
    assert interrupt_training(process) == (-signal.SIGINT, "KeyboardInterrupt")


@pytest.fixture
def silent_store(tmp_path, samples):
    """A store that does not answer reads of media: (url, options as JSON, set when there was one)."""
    root = loader.Root(str(tmp_path / "root"))
    samples.write(root, "photos", range(40), part_samples=5, fields=("cls",))
    objects = {f"r/{info.key}": root.store.get(info.key).data for info in root.store.list("")}
    server = RangeServer(objects)
    asked, over = threading.Event(), threading.Event()

    def wait_at_shard(key, nbytes):
        if key.endswith(".tar"):
            asked.set()
            over.wait()

    server.before = wait_at_shard
    yield "s3://bucket/r", json.dumps(server.options), asked
    over.set()
    server.close()


def test_store_that_does_not_answer(silent_store):
    url, options, asked = silent_store
    process = train(url, options, "2", "with")
    assert asked.wait(PATIENCE_S)
    assert interrupt_training(process) == (-signal.SIGINT, "KeyboardInterrupt")
