"""Checkpoints loaded through a node's cache: replicas read each byte from the store about once."""

import shutil
import threading

import pytest
import torch

import loader
from loader.errors import CorruptCheckpoint, InvalidRuntime
from penstock.checkpoints import Checkpoints
from tests.cache.peers.nodes import Node, running_nodes
from tests.penstock.checkpoints.near.nodes import distribute, near_path
from tests.penstock.checkpoints.near.nodes import save_state as near_save
from tests.run.range_server import RangeServer
from tests.servers.patience import PATIENCE_S

PAGE = 65536


@pytest.fixture
def saved_state(tmp_path):
    """Return the state of a checkpoint, and a server of its bucket."""
    folder = tmp_path / "root"
    state = {f"layer{number}": torch.randn(300, 1000) for number in range(6)}
    with Checkpoints(str(folder), "run", part_bytes=2_000_000) as checkpoints:
        checkpoints.create_root()
        checkpoints.save(10, state)
    objects = {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    server = ListingServer({f"r/{key}": data for key, data in objects.items()})
    yield state, server
    server.close()


class ListingServer(RangeServer):
    """A bucket that counts the bytes of parts."""

    def __init__(self, objects):
        self.part_bytes = 0
        self._lock = threading.Lock()
        super().__init__(objects)
        self.before = self._count

    def _count(self, path, nbytes):
        if "/parts/" in path and path.endswith(".safetensors"):
            with self._lock:
                self.part_bytes += nbytes

    def answer(self, request):
        if "list-type" in request.query:
            from tests.run.round_server import listing

            return 200, listing(self.objects, request.query["prefix"]), {}
        if request.method == "HEAD":
            body = self.objects[request.path.removeprefix("/bucket/")]
            return 200, body, {}
        return super().answer(request)


def load(server, cache, *, near=None, layers=6, step=10):
    state = {f"layer{number}": torch.zeros(300, 1000) for number in range(layers)}
    root = loader.Root("s3://bucket/r", options=server.options)
    with Checkpoints(root, "run", cache=cache, near=near) as checkpoints:
        assert checkpoints.load(state, partial=layers < 6).step == step
    return state


def is_equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def sizes(server):
    return sum(len(data) for key, data in server.objects.items() if key.endswith(".safetensors"))


def test_replicas_of_a_node_read_each_part_once(saved_state, tmp_path):
    state, server = saved_state
    cache = loader.NodeCache(path=tmp_path / "cache", limit_bytes=100 * PAGE * 10, page_bytes=PAGE)
    for _ in range(3):
        assert is_equal(load(server, cache), state)
    assert 0 < server.part_bytes <= 1.05 * sizes(server)


def test_replicas_of_several_nodes_read_each_part_once(saved_state, tmp_path):
    state, server = saved_state
    with running_nodes(tmp_path / "nodes", 3, page_bytes=PAGE) as nodes:
        peers = [node.address for node in nodes]
        states = {}

        def replica(node: Node) -> None:
            states[node.address] = load(server, node.spec(peers))

        threads = [threading.Thread(target=replica, args=(node,)) for node in nodes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(states) == 3
        for one in states.values():
            assert is_equal(one, state)
        assert server.part_bytes <= 1.05 * sizes(server)


def test_samplers_read_weights_from_near_and_else_each_byte_once(saved_state, tmp_path):
    state, server = saved_state
    newer = {name: value + 1 for name, value in state.items()}
    with running_nodes(tmp_path / "nodes", 4, page_bytes=PAGE) as nodes:
        training, sampling = nodes[:2], nodes[2:]
        distribute(near_save(tmp_path / "near", "run", 20, newer, part_bytes=2_000_000), training)
        peers = [node.address for node in nodes]
        states = {}

        def sampler(number, step):
            spec = sampling[number % 2].spec(peers)
            states[number] = load(server, spec, near=spec, layers=3, step=step)

        for step, expected in ((20, newer), (10, state)):
            threads = [threading.Thread(target=sampler, args=(number, step)) for number in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
            assert len(states) == 6
            for loaded in states.values():
                assert is_equal(loaded, expected)
            states.clear()
            if step == 20:
                assert server.part_bytes == 0
                for node in training:
                    shutil.rmtree(near_path(node, "checkpoints"))
        assert 0 < server.part_bytes <= 1.05 * sizes(server)


def test_damaged_part_is_named_and_its_pages_go(saved_state, tmp_path):
    state, server = saved_state
    cache = loader.NodeCache(path=tmp_path / "cache", limit_bytes=1000 * PAGE, page_bytes=PAGE)
    (key, *_) = sorted(key for key in server.objects if key.endswith(".safetensors"))
    whole = server.objects[key]
    damaged = bytearray(whole)
    damaged[-100] ^= 1
    server.objects[key] = bytes(damaged)
    with pytest.raises(CorruptCheckpoint):
        load(server, cache)
    server.objects[key] = whole
    assert is_equal(load(server, cache), state)


def test_cache_that_is_none_is_refused(tmp_path):
    with pytest.raises(InvalidRuntime):
        Checkpoints(str(tmp_path / "root"), "run", cache="/nvme")
