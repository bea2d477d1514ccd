"""Near saves whose ranks or servers die at each change of a file: after it the newest step is whole, or the one before.

Planted: the marker before the second copy; a failed copy that counts; a failure that deletes the step before.
"""

import itertools
import signal
import socket
import threading

import pytest
import torch

from loader.cache.peers.near_files import NearFiles, near_folder
from penstock.checkpoints import Checkpoints
from penstock.checkpoints.near.choice import NearNode, choose_near_step
from tests.cache.peers.nodes import running_nodes
from tests.penstock.checkpoints.conftest import ranks
from tests.penstock.checkpoints.ranks import near_state

__all__ = ["ranks"]  # a fixture

STEPS = (1, 2, 3)
NODES = 3


def make_request(nodes, tmp_path, **more):
    return {
        "url": str(tmp_path / "root"),
        "near": [str(node.folder) for node in nodes],
        "peers": [node.address for node in nodes],
        "steps": STEPS,
        "die_rank": 0,
        "die_at": -1,
        **more,
    }


def inventory(node):
    """Return what a start sees of a node."""
    run = NearFiles(near_folder(node.spec(None))).run("run")
    files = {}
    for file in run.files:
        files.setdefault(file.step, {})[file.name] = file.nbytes
    return NearNode(name=node.address, markers=run.markers, files=files)


def newest_step(nodes):
    """Return the step at which a start goes on that reaches these nodes."""
    choice = choose_near_step([inventory(node) for node in nodes], "run")
    return None if choice.checkpoint is None else choice.checkpoint.step


def check_state(nodes, tmp_path, step):
    """Load on one process of a node, and compare with the state that the ranks had."""
    states = [near_state(0, rank) for rank in range(NODES)]
    state = {name: value for one in states for name, value in one.items()}
    near = nodes[0].spec([node.address for node in nodes])
    with Checkpoints(str(tmp_path / "root"), "run", near=near) as saved:
        assert saved.load(state).step == step
    for rank in range(NODES):
        for name, value in near_state(step, rank).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(state[name], value)
            else:
                assert state[name] == value


def check_steps(nodes, tmp_path):
    """Whatever node is lost, each step with a marker is whole; a load fills all of it. Return the newest step."""
    whole = newest_step(nodes)
    assert whole in STEPS[-2:]
    for lost in nodes:
        rest = [node for node in nodes if node is not lost]
        marked = {step for node in rest for step in inventory(node).markers}
        assert newest_step(rest) == max(marked) >= STEPS[-2]
    check_state(nodes, tmp_path, whole)
    return whole


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("rank", range(NODES))
def test_rank_that_dies_at_any_change_costs_at_most_the_newest_step(ranks, tmp_path, rank):
    newest = set()
    for at in itertools.count():
        with running_nodes(tmp_path / f"{at}", NODES, limit_pages=16) as nodes:
            request = make_request(nodes, tmp_path / f"{at}", die_rank=rank, die_at=at)
            answers = ranks(NODES, "save_near_steps", whole=False, **request)
            newest.add(check_steps(nodes, tmp_path / f"{at}"))
        if answers[rank]["code"] == 0:
            break  # it has fewer changes
        assert answers[rank]["code"] == -signal.SIGKILL
        assert all(answer["code"] == 0 for answer in answers if answer is not answers[rank])
    assert at >= 2
    assert newest == set(STEPS[-2:])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_server_that_dies_at_any_change_costs_at_most_the_newest_step(ranks, tmp_path):
    for at in range(16):
        victim = at % NODES
        with running_nodes(tmp_path / f"{at}", NODES, limit_pages=16) as nodes:
            nodes[victim].stop()
            nodes[victim].start_process()
            pid = nodes[victim].process.pid
            request = make_request(nodes, tmp_path / f"{at}", die_pid=pid, die_at=at)
            answers = ranks(NODES, "save_near_steps", whole=False, **request)
            assert [answer["code"] for answer in answers] == [0] * NODES
            counts = [answer["said"]["counts"] for answer in answers]
            assert all(saved + failed == len(STEPS) for saved, _, failed, *_ in counts)
            nodes[victim].kill()
            rest = [node for node in nodes if node is not nodes[victim]]
            assert newest_step(rest) in STEPS[-2:]
            check_state(rest, tmp_path / f"{at}", newest_step(rest))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_node_that_lies_about_its_copies_is_not_believed(ranks, tmp_path):
    with running_nodes(tmp_path, 2, limit_pages=16) as nodes, lying_server() as address:
        request = make_request(nodes, tmp_path)
        request["near"] = [str(nodes[0].folder)]
        request["peers"] = [nodes[0].address, address]
        (answer,) = ranks(1, "save_near_steps", whole=False, **request)
        assert answer["said"]["counts"][0] == len(STEPS)
        assert newest_step(nodes[:1]) == STEPS[-1]
        # Its own node is lost; the other has what the liar could have: markers.
        for step in STEPS[-2:]:
            source = nodes[0].folder / f"near/checkpoints/run/steps/{step:012d}.json"
            target = nodes[1].folder / f"near/checkpoints/run/steps/{step:012d}.json"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
        assert newest_step(nodes[1:]) is None


class lying_server:
    """A server that says of each file that it is stored."""

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def __exit__(self, *error):
        self._listener.close()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection):
        with connection, connection.makefile("rb") as file:
            while line := file.readline():
                method = line.split()[0]
                nbytes = 0
                while (header := file.readline().strip()) != b"":
                    if header.lower().startswith(b"content-length:"):
                        nbytes = int(header.split(b":")[1])
                if method == b"PUT":
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                    file.read(nbytes)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstored")
                else:
                    body = b'{"runs": []}'
                    head = f"HTTP/1.1 206 OK\r\nContent-Length: {len(body)}\r\nETag: x\r\n"
                    head += f"Content-Range: bytes 0-{len(body) - 1}/{len(body)}\r\n\r\n"
                    connection.sendall(head.encode() + body)
