"""A forked child is told at once; without the guard it would hang."""

from tests.servers.processes import python

SCRIPT = """
import os, sys, faulthandler
faulthandler.dump_traceback_later(50, exit=True)
from loader.errors import ForkedStore, Transient
from loader.storage import ByteRange, open_store

options = {"key": "k", "secret": "ssss", "endpoint": "http://127.0.0.1:1", "retry_deadline_s": 0}
local = open_store(sys.argv[1])
memory = open_store("memory://forked")
local.put("k", b"disk")
memory.put("k", b"memory")
remote = None
if sys.argv[2] == "used":
    remote = open_store("s3://bucket", options)
    try:
        remote.get("k")  # starts the native runtime
    except Transient:
        pass

child = os.fork()
if child == 0:
    told = 0
    if remote is None:
        try:
            open_store("s3://bucket", options).get("k")
        except Transient:
            told = 100  # the child's own, first runtime works
    else:
        verbs = [
            lambda: remote.get("k"), lambda: remote.get_range("k", 0, 1),
            lambda: remote.get_ranges("k", [ByteRange(0, 1), ByteRange(9, 1)], max_gap=0), lambda: remote.put("k", b""),
            lambda: remote.put_if_absent("k", b""), lambda: remote.put_file("k", "/etc/hostname"),
            lambda: remote.head("k"), lambda: list(remote.list()), lambda: remote.delete_many(["k"]),
            lambda: remote.copy("a", "b"), lambda: remote.open_stream("k"),
            lambda: open_store("s3://bucket", options), lambda: open_store("gs://bucket", {"anon": True}),
        ]
        for verb in verbs:
            try:
                verb()
            except ForkedStore as error:
                told += "spawn" in str(error) and "forkserver" in str(error)
        told = 100 if told == len(verbs) else told
    fine = local.get("k").data == b"disk" and memory.get("k").data == b"memory"
    os._exit(told if fine else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
if remote is not None:
    try:
        remote.get("k")  # the parent goes on
    except Transient:
        pass
print(status)
"""


def outcome(tmp_path, use: str) -> str:
    done = python("-W", "ignore", "-c", SCRIPT, tmp_path / "root", use)
    return done.stdout.strip() + done.stderr


def test_every_verb_in_a_forked_child_raises_at_once(tmp_path):
    assert outcome(tmp_path, "used") == "100"


def test_child_of_a_parent_without_native_clients_may_open_one(tmp_path):
    assert outcome(tmp_path, "unused") == "100"


FSSPEC = """
import os, sys, threading, faulthandler, functools
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
faulthandler.dump_traceback_later(50, exit=True)
from loader.errors import ForkedStore
from loader.storage import ByteRange, open_store

class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

folder = sys.argv[1]
open(os.path.join(folder, "k"), "wb").write(b"over http")
server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
remote = open_store(url)
assert remote.get("k").data == b"over http"  # fsspec has a thread with an event loop now
bucket = open_store("s3://bucket", {"fsspec": {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:1"}})

child = os.fork()
if child == 0:
    told = []
    for store in (remote, bucket):
        verbs = [
            lambda: store.get("k"), lambda: store.get_range("k", 0, 1),
            lambda: store.get_ranges("k", [ByteRange(0, 1), ByteRange(9, 1)], max_gap=0), lambda: store.put("k", b""),
            lambda: store.put_file("k", "/etc/hostname"), lambda: store.head("k"), lambda: list(store.list()),
            lambda: store.delete_many(["k"]), lambda: store.copy("a", "b"), lambda: store.open_stream("k"),
            lambda: bucket.put_if_absent("k", b""),
        ]
        for verb in verbs:
            try:
                verb()
            except ForkedStore as error:
                told.append("spawn" in str(error) and "forkserver" in str(error))
    fine = open_store(url).get("k").data == b"over http"  # a client of the child's own
    os._exit(100 if fine and told == [True] * 22 else len(told))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert remote.get("k").data == b"over http"  # the parent goes on
"""


def test_every_verb_of_an_fsspec_store_in_a_forked_child_raises_at_once(tmp_path):
    done = python("-W", "ignore", "-c", FSSPEC, tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "100"), done.stderr


HELD = """
import faulthandler, os, sys, threading
faulthandler.dump_traceback_later(50, exit=True)
from loader.storage.threads import lock
from loader.storage.threads import Turns

shared, turns, reached, over = lock(), Turns(), threading.Event(), threading.Event()

def hold():
    with shared, turns.of("index"):
        reached.set()
        over.wait()

threading.Thread(target=hold).start()
reached.wait()
child = os.fork()
if child == 0:
    with shared, turns.of("index"):
        os._exit(100)
over.set()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_what_a_thread_of_the_parent_held_is_free_in_a_child():
    done = python("-c", HELD)
    assert (done.returncode, done.stdout.strip()) == (0, "100"), done.stderr
