"""A Loader on S3: the same batches as on a disk, and a store that goes away is an error, never other data."""

import os
import socket
import threading
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

import loader
from loader.errors import Transient
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S
from tests.servers.processes import python


class Line:
    """A TCP line to a server that can be cut: open connections are closed, new ones refused."""

    def __init__(self, endpoint):
        there = urlsplit(endpoint)
        self._address = there.hostname, there.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets, self._threads, self._lock = [], [], threading.Lock()
        self._start(self._accept)

    def cut(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for one in self._sockets:
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # the other side was faster
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(PATIENCE_S)
        for one in self._sockets:
            one.close()

    def _start(self, target, *arguments):
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._address)
            with self._lock:
                self._sockets += [near, far]
                self._start(self._pump, near, far)
                self._start(self._pump, far, near)

    def _pump(self, source, target):
        try:
            while data := source.recv(2**16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return


def impatient(s3):
    """Options of a store that gives up soon."""
    return {
        **s3,
        "retry_base_s": 0.001,
        "retry_cap_s": 0.01,
        "retry_deadline_s": 0.3,
        "timeout_s": 10.0,
    }


def copy_root(tmp_path, samples, s3, name):
    """One root on a disk, and the same objects in a bucket: (local plan, remote root)."""
    local = loader.Root(str(tmp_path / "root"))
    samples.write(local, "photos", range(40), part_samples=9)
    remote = loader.Root(f"s3://bucket/{name}", options=impatient(s3))
    for info in local.store.list(""):
        if not info.key.startswith("heartbeats/"):
            remote.store.put(info.key, local.store.get(info.key).data)
    return local, remote


def make_plan(root):
    view = root.open("photos@1").select("x.npy", "txt", "cls").where("i < 33")
    return loader.plan({"p": view}, seed=4, global_batch=8)


@pytest.mark.parametrize("workers", [0, 2])
def test_same_batches_as_from_a_disk(tmp_path, samples, properties, s3, workers):
    local, remote = copy_root(tmp_path, samples, s3, f"same-{workers}")
    near, far = make_plan(local), make_plan(remote)
    assert near.hash == far.hash
    wanted = properties.reference_digests(near, 6)
    truth = lambda _, key: samples.sample("photos", samples.number(key))  # noqa: E731
    with ExitStack() as stack:
        ranks = properties.open_ranks(stack, far, 3, workers=workers)
        for step in range(6):
            batches = [next(rank) for rank in ranks]
            properties.check_step(far, step, batches, truth)
            assert sum(batch.digest for batch in batches) % properties.MODULUS == wanted[step]
    remote.close()


def test_store_that_goes_away_is_an_error_after_the_budget(tmp_path, samples, properties, s3):
    line = Line(s3["endpoint_url"])
    local, remote = copy_root(tmp_path, samples, {**s3, "endpoint_url": line.url}, "cut")
    wanted = properties.reference_digests(make_plan(local), 20)
    plan, steps = make_plan(remote), 20
    got = {}
    with loader.Loader(plan, 0, 1, workers=1, prefetch=0, steps=steps, framework="numpy", cache=0) as batches:
        for _ in range(3):
            batch = next(batches)
            got[batch.step] = batch.digest
        line.cut()
        with refusal(
            Transient, what="read", within="s3://bucket/"
        ) as caught:  # after what was read before the cut
            got.update((batch.step, batch.digest) for batch in batches)
        assert batches.step == batches.state_dict()["step"] == len(got) < steps
        assert any("while reading photos@1/" in note for note in caught.value.__notes__)
        state = batches.state_dict()
    assert got == {step: wanted[step] for step in range(len(got))}
    back = loader.Root("s3://bucket/cut", options=impatient(s3))
    with loader.Loader(make_plan(back), 0, 1, workers=2, steps=steps) as batches:
        batches.load_state_dict(state)
        got |= {batch.step: batch.digest for batch in batches}
    assert got == wanted
    back.close()
    remote.close()  # its lease cannot be given back, which is logged


WORKERS = """
import sys
import loader
from torch.utils.data import DataLoader

def take(context):
    for batch in DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=context):
        print(batch.step, batch.digest)

if __name__ == "__main__":
    plan = loader.open_plan(loader.Root(sys.argv[1]), sys.argv[2])
    dataset = loader.torch_dataset(plan, 0, 1, steps=4)
    take("spawn")
    with loader.Loader(plan, 0, 1) as batches:
        next(batches)
    try:
        take("fork")
    except loader.errors.ForkedStore as error:
        print("ForkedStore", "spawn" in str(error))
"""


def test_worker_processes(tmp_path, samples, properties, s3):
    """Spawned ones deliver; a forked one, whose parent's client would hang, is an error."""
    local, remote = copy_root(tmp_path, samples, s3, "processes")
    plan = make_plan(local)
    plan.save(remote)
    script = tmp_path / "train.py"  # spawn runs it again
    script.write_text(WORKERS)
    given = {
        "AWS_ACCESS_KEY_ID": s3["key"],
        "AWS_SECRET_ACCESS_KEY": s3["secret"],
        "AWS_ENDPOINT_URL": s3["endpoint_url"],
    }
    environ = {**os.environ, **given}  # options are not pickled: they hold secrets
    done = python(script, remote.url, plan.hash, env=environ)
    assert done.returncode == 0, done.stderr
    wanted = properties.reference_digests(plan, 4)
    delivered = [f"{step} {digest}" for step, digest in wanted.items()]
    assert done.stdout.splitlines() == [*delivered, "ForkedStore True"]
    remote.close()
