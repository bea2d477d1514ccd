"""A start loads the newest near step that is whole, from whichever nodes have its parts, or an older one."""

import logging
import shutil
from contextlib import closing

import pytest
import torch

import loader
from loader.cache.peers import lifetime
from loader.cache.peers.lifetime import live_server
from loader.errors import CheckpointMismatch, CorruptCheckpoint, InvalidRuntime
from loader.storage.requests import Traffic, count_requests
from penstock.checkpoints import Checkpoints
from penstock.checkpoints.marker import marker_key, part_key
from penstock.checkpoints.near import start
from penstock.checkpoints.near.start import NearSteps
from penstock.checkpoints.restore import load_newest
from penstock.checkpoints.set_aside import set_aside
from tests.cache.peers.nodes import running_nodes
from tests.servers.patience import PATIENCE_S

from .nodes import distribute, near_checkpoints, near_path, save_state

RUN = "run"


def state(fill, **more):
    return {
        "w": torch.full((5000,), float(fill)),
        "v": torch.arange(3000) + fill,
        "n": {"step": fill},
        **more,
    }


def empty():
    return state(0)


def is_filled(loaded, fill):
    expected = state(fill)
    return (
        torch.equal(loaded["w"], expected["w"])
        and torch.equal(loaded["v"], expected["v"])
        and loaded["n"] == expected["n"]
    )


@pytest.fixture
def nodes(tmp_path):
    with running_nodes(tmp_path / "nodes", 3) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def saves(tmp_path_factory):
    """Return saves of steps: step -> (checkpoint, folder). Step 41 is another attempt at step 40."""
    folder = tmp_path_factory.mktemp("saves")
    names = {10: 10, 20: 20, 40: 40, 41: 40, 60: 60}
    return {fill: save_state(folder / f"{fill}", RUN, step, state(fill)) for fill, step in names.items()}


@pytest.fixture
def root(tmp_path, saves):
    """Return a root with step 10."""
    return shutil.copytree(saves[10][1], tmp_path / "root")


@pytest.fixture
def steps(nodes, saves):
    """Put near steps 20 and 40 on all nodes."""
    for step in (20, 40):
        distribute(saves[step], nodes)
    return saves


def load(root, node, nodes, **options):
    loaded = empty()
    with near_checkpoints(root, RUN, node, nodes) as checkpoints:
        checkpoint = checkpoints.load(loaded, **options)
        return loaded, checkpoint and checkpoint.step


def test_newest_near_step_is_loaded_on_each_node(root, nodes, steps):
    for node in nodes:
        loaded, step = load(root, node, nodes)
        assert step == 40
        assert is_filled(loaded, 40)


def test_listings_and_a_chosen_step_are_the_roots(root, nodes, steps):
    with near_checkpoints(root, RUN, nodes[0], nodes) as checkpoints:
        assert checkpoints.steps() == [10]
        assert checkpoints.latest().step == 10
    loaded, step = load(root, nodes[0], nodes, step=10)
    assert step == 10
    assert is_filled(loaded, 10)


def test_newer_step_of_the_root_wins(root, nodes, steps):
    with Checkpoints(str(root), RUN) as checkpoints:
        checkpoints.save(40, state(400))
    loaded, step = load(root, nodes[0], nodes)
    assert step == 40
    assert is_filled(loaded, 400)


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "of another attempt", "emptied"])
@pytest.mark.parametrize("kind", ["part", "index"])
def test_damaged_copy_is_read_elsewhere_or_the_older_step_loads(
    root, nodes, steps, caplog, kind, damage, copies
):
    checkpoint, _ = steps[40]
    stored = checkpoint.index if kind == "index" else checkpoint.parts[0]
    paths = [near_path(node, checkpoint.key(stored)) for node in nodes]
    holders = [path for path in paths if path.exists()]
    assert len(holders) == 2
    for path in holders[:copies]:
        data = bytearray(path.read_bytes())
        if damage == "missing":
            path.unlink()
            continue
        if damage == "of another attempt":
            other, folder = steps[41]
            twin = other.index if kind == "index" else other.parts[0]
            data = bytearray((folder / other.key(twin)).read_bytes())
        elif damage == "cut":
            del data[-1:]
        elif damage == "emptied":
            data.clear()
        else:
            data[-100] ^= 1
        path.write_bytes(data)
    caplog.set_level(logging.WARNING)
    # The node with a damaged copy reads its own first.
    loaded, step = load(root, nodes[paths.index(holders[0])], nodes)
    expected = 40 if copies == 1 else 20
    assert step == expected
    assert is_filled(loaded, expected)
    if copies == 2:
        lines = [
            record.message for record in caplog.records if "does not go on at near step 40" in record.message
        ]
        assert len(lines) == 1
        assert stored.name in lines[0]


def test_lost_node_costs_nothing_and_two_cost_the_step(root, nodes, steps):
    nodes[0].stop()
    loaded, step = load(root, nodes[1], nodes)
    assert step == 40
    assert is_filled(loaded, 40)
    nodes[2].stop()
    loaded, step = load(root, nodes[1], nodes)
    assert step == 10
    assert is_filled(loaded, 10)


def test_node_that_comes_back_with_an_old_folder_changes_nothing(root, nodes, steps):
    # Its attempt at step 40 lost other parts with another node. The run has made the step again without it.
    shutil.rmtree(near_path(nodes[0], "checkpoints"))
    old, _ = steps[41]
    distribute(steps[41], nodes[:1], copies=1)
    near_path(nodes[0], old.key(old.parts[0])).unlink()
    for node in nodes:
        loaded, step = load(root, node, nodes)
        assert step == 40
        assert is_filled(loaded, 40)


def test_two_whole_attempts_are_never_mixed(root, nodes, steps):
    distribute(steps[41], nodes, markers=nodes[:1])
    loaded, step = load(root, nodes[0], nodes)
    assert step == 40
    assert is_filled(loaded, 40)
    distribute(steps[41], nodes, markers=nodes[1:])
    loaded, step = load(root, nodes[0], nodes)
    assert step == 40
    assert is_filled(loaded, 41)


def test_damage_of_every_near_step_leaves_the_roots(root, nodes, steps):
    for node in nodes:
        for path in near_path(node, "checkpoints").rglob("*.safetensors"):
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
    loaded, step = load(root, nodes[0], nodes)
    assert step == 10
    assert is_filled(loaded, 10)


def test_start_without_any_checkpoint_changes_nothing(tmp_path, nodes):
    with loader.Root(tmp_path / "new") as root:
        root.create()
    loaded, step = load(tmp_path / "new", nodes[0], nodes)
    assert step is None
    assert is_filled(loaded, 0)


def test_other_element_type_is_converted(root, nodes, steps):
    loaded = {**empty(), "w": torch.zeros(5000, dtype=torch.bfloat16)}
    with near_checkpoints(root, RUN, nodes[0], nodes) as checkpoints:
        assert checkpoints.load(loaded).step == 40
    assert torch.equal(loaded["w"], torch.full((5000,), 40, dtype=torch.bfloat16))


def test_state_that_lacks_a_value_needs_partial(root, nodes, steps):
    loaded = {"w": torch.zeros(5000)}
    with near_checkpoints(root, RUN, nodes[0], nodes) as checkpoints:
        with pytest.raises(CheckpointMismatch):
            checkpoints.load(loaded)
        assert checkpoints.load(loaded, partial=True).step == 40
    assert torch.equal(loaded["w"], state(40)["w"])


def test_start_of_a_saver_deletes_what_nobody_needs_on_its_node(root, nodes, steps):
    with Checkpoints(str(root), RUN) as checkpoints:
        checkpoints.save(20, state(20))
    for node in nodes:
        path = near_path(node, part_key(RUN, 60, "0123456789abcdef-00000.safetensors"))
        path.parent.mkdir(parents=True)
        path.write_bytes(b"part of a save that was killed")

    def there(node):
        return sorted({int(path.parts[-2]) for path in near_path(node, "checkpoints").rglob("*.safetensors")})

    assert load(root, nodes[0], nodes)[1] == 40
    assert there(nodes[0]) == [20, 40, 60]  # a reader deletes nothing
    with near_checkpoints(root, RUN, nodes[0], nodes, near_every=20) as checkpoints:
        assert checkpoints.load(empty()).step == 40
    assert there(nodes[0]) == [40]
    assert there(nodes[1]) == [20, 40, 60]
    assert not near_path(nodes[0], marker_key(RUN, 20)).exists()


def test_steps_after_one_that_a_person_set_aside_do_not_count(root, nodes, steps):
    with Checkpoints(str(root), RUN) as checkpoints:
        checkpoints.save(30, state(30))
    store = loader.Root(root).store
    set_aside(store, RUN, 30, by="a person", reason="the loss went up")
    loaded, step = load(root, nodes[0], nodes)
    assert step == 20
    assert is_filled(loaded, 20)


def test_rejection_is_noted_in_the_run(root, nodes, steps):
    for node in nodes:
        path = near_path(node, steps[40][0].key(steps[40][0].parts[0]))
        path.unlink(missing_ok=True)
    notes = []
    with near_checkpoints(root, RUN, nodes[0], nodes) as checkpoints:
        loaded = empty()
        assert load_newest(
            checkpoints, loaded, None, lambda call: call(), lambda **facts: notes.append(facts)
        )
    assert is_filled(loaded, 20)
    (note,) = notes
    assert note["checkpoint"] == 40
    assert steps[40][0].parts[0].name in note["reason"]


def test_near_steps_cost_the_root_no_request(root, nodes):
    requests = []
    for near in (False, True):
        traffic = Traffic()
        options = {"near": nodes[0].spec([node.address for node in nodes])} if near else {}
        with Checkpoints(str(root), RUN, **options) as checkpoints, count_requests(traffic):
            assert checkpoints.load(empty()).step == 10
        requests.append(traffic.requests)
    assert requests[0] == requests[1] > 0


def test_step_that_the_training_deletes_meanwhile_gives_way_to_the_next(root, nodes, steps):
    store = loader.Root(root).store
    with closing(NearSteps(nodes[0].spec([node.address for node in nodes]), RUN, None)) as near:
        near.gather()
        start = near.choose(store)
        assert start.checkpoint.step == 40
        for node in nodes:
            for step in (20, 40):
                near_path(node, marker_key(RUN, step)).unlink()
                shutil.rmtree(near_path(node, part_key(RUN, step, "")))
        distribute(steps[60], nodes)
        with pytest.raises(CorruptCheckpoint) as caught:
            near.reads(start).read(start.checkpoint.parts[0])
        near.reject(start.checkpoint, caught.value)
        near.gather()
        assert near.choose(store).checkpoint.step == 60


def test_token_that_others_may_read_is_refused(root, nodes, steps):
    token = nodes[0].folder / "token"
    token.write_text("a-token-that-others-read")
    token.chmod(0o644)
    with pytest.raises(InvalidRuntime):
        load(root, nodes[0], nodes)


def test_start_of_a_saver_serves_its_node(root, nodes, steps, monkeypatch):
    nodes[0].stop()
    servers = []

    class ObservedSteps(NearSteps):
        """Records whether the node's server runs when the near steps are read."""

        def __init__(self, *arguments):
            servers.append(live_server(str(nodes[0].folder)))
            super().__init__(*arguments)

    monkeypatch.setattr(start, "NearSteps", ObservedSteps)
    with near_checkpoints(root, RUN, nodes[0], nodes[:1], near_every=20) as checkpoints:
        assert live_server(str(nodes[0].folder)) is None
        checkpoints.load(empty(), partial=True)
        server = live_server(str(nodes[0].folder))
        assert server.address == nodes[0].address
    # The other nodes read this one's parts meanwhile.
    assert servers == [server]
    (process,) = lifetime._started
    assert process.pid == server.pid
    process.terminate()
    process.wait(PATIENCE_S)
    lifetime._started.clear()
