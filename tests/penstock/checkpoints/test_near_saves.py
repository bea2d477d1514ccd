"""Near saves of one rank on several nodes: two copies, then the marker; faults cost the near save, never a step."""

import logging
import os
import socket
import time

import pytest
import torch

import loader
from loader.cache.peers import near_answers, near_client, near_files
from loader.cache.peers.environment import node_block
from loader.cache.peers.near_files import NearFiles, near_folder
from loader.errors import InvalidRuntime
from penstock.checkpoints import Checkpoints, marker
from penstock.checkpoints.near.copy_order import copy_order
from penstock.checkpoints.near.nodes import NearNodes
from penstock.checkpoints.near.session import NearSession
from tests.cache.peers.nodes import running_nodes
from tests.cache.peers.test_near_files import PART, place, put
from tests.refusals import refusal

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
RUN = "run"
EVERY = 4


def state_of(step):
    """Return a state that no other step has."""
    draw = torch.Generator().manual_seed(step)
    return {
        "weights": torch.randn(300, 100, generator=draw),
        "bias": torch.full((7,), float(step)),
        "lr": 0.5,
    }


@pytest.fixture
def cluster(tmp_path):
    with running_nodes(tmp_path, 3, limit_pages=8) as nodes:
        yield nodes


def saver(tmp_path, nodes, **options):
    near = nodes[0].spec([node.address for node in nodes])
    return Checkpoints(str(tmp_path / "root"), RUN, near=near, near_every=EVERY, part_bytes=50_000, **options)


def save_until(saved, last, first=1, on_failed=None):
    for step in range(first, last + 1):
        saved.save_near(step, state_of(step), on_failed=on_failed)
        if step % EVERY == 0:
            saved.wait()


def stored(node):
    """Return step -> (whether it has a marker, names of its files) on a node."""
    run = NearFiles(near_folder(node.spec(None))).run(RUN)
    steps = {}
    for step in {*run.markers, *(file.step for file in run.files)}:
        steps[step] = (step in run.markers, {file.name for file in run.files if file.step == step})
    return steps


def names_of(nodes, step):
    """Return the names that a step's marker has."""
    run = NearFiles(near_folder(nodes[0].spec(None))).run(RUN)
    return {one.name for one in marker.decode(run.markers[step], "here").objects}


def test_step_lies_on_two_nodes_and_its_marker_on_all(tmp_path, cluster):
    with saver(tmp_path, cluster) as saved:
        save_until(saved, EVERY)
        names = names_of(cluster, EVERY)
        assert len(names) == 4  # three parts and the index
        holders = [node for node in cluster if stored(node)[EVERY] == (True, names)]
        (other,) = [node for node in cluster if node not in holders]
        assert len(holders) == 2
        assert holders[0] is cluster[0]
        assert stored(other) == {EVERY: (True, set())}
        for node in holders:
            loaded = {name: torch.zeros_like(value) for name, value in state_of(0).items() if name != "lr"}
            loaded["lr"] = 0.0
            with Checkpoints(near_folder(node.spec(None)), RUN) as near_root:
                near_root.load(loaded)
            expected = state_of(EVERY)
            assert loaded["lr"] == expected["lr"]
            assert torch.equal(loaded["weights"], expected["weights"])
            assert torch.equal(loaded["bias"], expected["bias"])
        counts = saved.near_counts()
        assert (counts.saved, counts.skipped, counts.failed, counts.step) == (1, 0, 0, EVERY)
        weights = 4 * (300 * 100 + 7)
        assert f"near: {weights:,} bytes a step" in saved.describe()
        assert f"{weights + 50_000:,} bytes of host memory" in saved.describe()
        assert "1 saved, 0 skipped, 0 failed; the newest is step 4" in saved.describe()


def test_marker_comes_after_both_copies(tmp_path, cluster, monkeypatch):
    """Planted: the marker before the second copy; a copy that is not sent."""
    copies = []
    write = NearFiles.write

    def watch(files, key, nbytes, checksum, pieces):
        data = b"".join(bytes(piece) for piece in pieces)
        if "/steps/" in key:
            checkpoint = marker.decode(data, key)
            for one in checkpoint.objects:
                paths = [node.folder / "near" / checkpoint.key(one) for node in cluster]
                copies.append(sum(path.is_file() and path.stat().st_size == one.nbytes for path in paths))
        write(files, key, nbytes, checksum, [data])

    monkeypatch.setattr(NearFiles, "write", watch)
    with saver(tmp_path, cluster) as saved:
        save_until(saved, EVERY)
    assert copies == [2] * (3 * 4)  # for each node's marker, each object


def test_two_steps_stay(tmp_path, cluster):
    with saver(tmp_path, cluster) as saved:
        save_until(saved, 4 * EVERY)
    for node in cluster:
        assert stored(node).keys() == {3 * EVERY, 4 * EVERY}
        parts = node.folder / f"near/checkpoints/{RUN}/parts"
        assert not parts.exists() or len(os.listdir(parts)) == 2  # no empty folder of another step


def test_run_that_went_back_replaces_its_steps(tmp_path, cluster):
    with saver(tmp_path, cluster) as saved:
        save_until(saved, 3 * EVERY)
    before = names_of(cluster, 2 * EVERY)
    with saver(tmp_path, cluster) as saved:
        save_until(saved, 2 * EVERY, first=EVERY + 1)
    assert names_of(cluster, 2 * EVERY).isdisjoint(before)
    for node in cluster:
        assert stored(node).keys() <= {EVERY, 2 * EVERY}


@pytest.mark.parametrize("wait", [True, False])
def test_save_in_the_root_deletes_near_steps_up_to_it(tmp_path, cluster, wait):
    with saver(tmp_path, cluster) as saved:
        save_until(saved, 2 * EVERY)
        saved.save(2 * EVERY - 1, state_of(1), wait=wait)
        saved.wait()
        assert [stored(node).keys() for node in cluster] == [{2 * EVERY}] * 3
        saved.save(2 * EVERY, state_of(1), wait=wait)
    assert [stored(node) for node in cluster] == [{}] * 3


def test_dead_node_costs_one_near_save(tmp_path, cluster, monkeypatch, caplog):
    """Planted: a fault of the second copy that the marker ignores; parts that stay after a failure."""
    with saver(tmp_path, cluster) as saved:
        save_until(saved, EVERY)
        (partner,) = [node for node in cluster[1:] if stored(node)[EVERY][1]]
        partner.stop()
        with caplog.at_level(logging.WARNING, "penstock"):
            save_until(saved, 2 * EVERY, first=EVERY + 1)
        assert saved.near_counts()[:4] == (1, 0, 1, EVERY)
        assert f"{partner.address}: no connection: Connection refused" in saved.describe()
        assert "near step 8 was not saved, and the training goes on" in caplog.text
        assert stored(cluster[0]).keys() == {EVERY}
        save_until(saved, 3 * EVERY, first=2 * EVERY + 1)
        assert saved.near_counts()[:4] == (2, 0, 1, 3 * EVERY)
        (third,) = [node for node in cluster[1:] if node is not partner]
        assert stored(third)[3 * EVERY] == stored(cluster[0])[3 * EVERY]


def test_node_that_does_not_answer_costs_the_near_save_and_no_step(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(near_client, "PROGRESS_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        near = cluster[0].spec([cluster[0].address, f"{host}:{port}"])
        with Checkpoints(str(tmp_path / "root"), RUN, near=near, near_every=EVERY) as saved:
            saved.save_near(EVERY, state_of(EVERY))
            connection, _ = silent.accept()  # the call is over, and its save waits for an answer
            with connection:
                assert saved.near_counts()[:3] == (0, 0, 0)
                saved.save_near(2 * EVERY, state_of(2 * EVERY))
                saved.wait()
                assert saved.near_counts()[:3] == (0, 1, 1)
                assert "longer than 0.2 s" in saved.describe()
    assert stored(cluster[0]) == {}


def test_no_other_node_that_answers_means_no_marker(tmp_path, cluster):
    with saver(tmp_path, cluster) as saved:
        save_until(saved, EVERY)
        for node in cluster[1:]:
            node.stop()
        steps = []
        save_until(saved, 3 * EVERY, first=EVERY + 1, on_failed=lambda step, reason: steps.append(step))
        assert steps == [2 * EVERY]  # the second failure is not news
        assert saved.near_counts()[:4] == (1, 0, 2, EVERY)
    assert stored(cluster[0]).keys() == {EVERY}


def test_full_disk_of_the_other_node_costs_the_near_save(tmp_path, cluster, monkeypatch):
    with saver(tmp_path, cluster) as saved:
        save_until(saved, EVERY)
        with monkeypatch.context() as full:
            full.setattr(near_files, "SPARE_BYTES", 2**62)
            save_until(saved, 2 * EVERY, first=EVERY + 1)
        counts = saved.near_counts()
        assert counts[:4] == (1, 0, 1, EVERY)
        assert "507: the disk of this node has 0 bytes for near checkpoints" in counts.problem


def test_save_that_finds_one_running_is_skipped(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(near_answers, "AT_ONCE", 1)
    with running_nodes(tmp_path / "others", 1, limit_pages=8) as busy:
        nodes = [cluster[0], *busy]
        with (
            saver(tmp_path, nodes) as saved,
            socket.create_connection(place(busy[0].address), 5) as connection,
        ):
            data = put("/v1/near/another/000000000001/" + PART, token=None)
            connection.sendall(data[:-1])
            while not stored_unfinished(busy[0]):
                time.sleep(0.01)
            saved.save_near(EVERY, state_of(EVERY))
            saved.save_near(2 * EVERY, state_of(2 * EVERY))
            connection.sendall(data[-1:])
            saved.wait()
            assert saved.near_counts()[:4] == (1, 1, 0, EVERY)
            saved.save_near(3 * EVERY, state_of(3 * EVERY))
            saved.wait()
            assert saved.near_counts()[:4] == (2, 1, 0, 3 * EVERY)


def stored_unfinished(node):
    return list((node.folder / "near").rglob(".tmp-*"))


def test_disks_that_cannot_hold_three_steps_are_refused_at_the_first_step(tmp_path, cluster, monkeypatch):
    with saver(tmp_path, cluster) as saved:
        monkeypatch.setattr(near_files, "SPARE_BYTES", 2**62)
        with refusal(InvalidRuntime, what="free bytes", given=0):
            saved.save_near(1, state_of(1))


def test_load_sets_near_saves_up(tmp_path, cluster, monkeypatch):
    """Planted: a first step that sets near saves up; no second look at the disks for a larger state."""
    with saver(tmp_path, cluster) as saved:
        assert saved.load(state_of(1)) is None
        assert "near: 120,028 bytes a step" in saved.describe()
        with monkeypatch.context() as nothing_is_opened:
            nothing_is_opened.setattr(NearNodes, "facts", None)
            nothing_is_opened.setattr(NearSession, "nodes", None)
            save_until(saved, EVERY)
        assert saved.near_counts()[:4] == (1, 0, 0, EVERY)
    with saver(tmp_path, cluster) as saved:
        saved.load(state_of(1))
        monkeypatch.setattr(near_files, "SPARE_BYTES", 2**62)
        with pytest.raises(InvalidRuntime) as refusal:
            saved.save_near(1, {**state_of(1), "moments": torch.zeros(7)})
        assert "for 3 steps" in str(refusal.value)


def test_load_of_a_sampler_sets_no_near_saves_up(tmp_path, cluster):
    near = cluster[0].spec([node.address for node in cluster])
    with Checkpoints(str(tmp_path / "root"), RUN, near=near) as saved:
        saved.load(state_of(1))
        assert saved.near_counts() is None


def test_machine_that_is_no_peer_is_refused(tmp_path):
    near = loader.NodeCache(path=tmp_path / "cache", peers=["198.51.100.1:7070", "198.51.100.2:7070"])
    with (
        Checkpoints(str(tmp_path / "root"), RUN, near=near, near_every=EVERY) as saved,
        refusal(InvalidRuntime, what="peers", given=["198.51.100.1:7070", "198.51.100.2:7070"]),
    ):
        saved.save_near(1, state_of(1))


def test_one_node_keeps_its_steps_with_a_warning(tmp_path, caplog):
    with (
        running_nodes(tmp_path, 1, limit_pages=8) as nodes,
        saver(tmp_path, nodes) as saved,
        caplog.at_level(logging.WARNING, "penstock"),
    ):
        save_until(saved, EVERY)
        assert saved.near_counts().saved == 1
        assert "not a lost node" in caplog.text
        assert stored(nodes[0])[EVERY] == (True, names_of(nodes, EVERY))


def test_without_near_every_nothing_is_saved(tmp_path, cluster):
    near = cluster[0].spec([node.address for node in cluster])
    with Checkpoints(str(tmp_path / "root"), RUN, near=near) as saved:
        saved.save_near(EVERY, state_of(1))
        assert saved.near_counts() is None
    assert not (cluster[0].folder / "near").exists()


@pytest.mark.parametrize(
    ("environment", "block"),
    [
        ({}, ""),
        ({"SLURM_TOPOLOGY_ADDR": "n17"}, ""),
        ({"SLURM_TOPOLOGY_ADDR": "s0.s4.n17"}, "s0.s4"),
        ({"SLURM_TOPOLOGY_ADDR": "s0.s4.n17", "PENSTOCK_NODE_BLOCK": "rack 3"}, "rack 3"),
    ],
)
def test_block_is_the_label_or_the_switches(monkeypatch, environment, block):
    for name in ("SLURM_TOPOLOGY_ADDR", "PENSTOCK_NODE_BLOCK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert node_block() == block


def test_copies_leave_the_block_and_spread_evenly():
    addresses = [f"10.0.0.{number}:7070" for number in range(12)]
    blocks = {address: f"rack{number % 3}" for number, address in enumerate(addresses)}
    first = [copy_order(own, addresses, blocks)[0] for own in addresses]
    assert sorted(first) == sorted(addresses)  # each node receives from one
    for own, partner in zip(addresses, first, strict=True):
        order = copy_order(own, addresses, blocks)
        assert blocks[partner] != blocks[own]
        assert sorted([own, *order]) == sorted(addresses)
        assert [blocks[one] == blocks[own] for one in order] == [False] * 8 + [True] * 3
    alike = [copy_order(own, addresses, {})[0] for own in addresses]
    assert sorted(alike) == sorted(addresses)
    assert copy_order("a:1", ["a:1"], {}) == []
