"""An epoch that MosaicML streaming has half read goes on in its order: against what its DataLoaders serve."""

import itertools
import json
import os
from pathlib import Path

import pytest

import loader
from penstock.cli import main
from penstock.formats.registration.register import register

pytestmark = pytest.mark.oracle
HERE = Path(__file__).parent
PYTHON = Path(os.environ.get("PENSTOCK_ORACLES", HERE.parents[1] / ".oracles")) / "mds/bin/python"
_ports = itertools.count(20_000 + os.getpid() % 20_000)


@pytest.fixture(scope="module")
def docs(tmp_path_factory, peer):
    """(folder of 100 samples, root with a version of them)."""
    place = tmp_path_factory.mktemp("order")
    peer("mds", "write", place / "mds")
    with loader.Root(place / "root") as root:
        register(root, "mds", place / "mds", "docs")
    return place / "mds", str(place / "root")


def ours(capsys, docs, world, *more):
    """Samples of each step of the list: a plan's, read by two ranks."""
    folder, url = docs
    dataset = world["dataset"]
    options = [f"--{name}={world[name]}" for name in ("nodes", "ranks", "workers")]
    options += [f"--batch-size={dataset['batch_size']}", f"--seed={dataset.get('shuffle_seed', 9176)}"]
    options += [f"--shuffle={dataset['shuffle_algo']}"] if dataset.get("shuffle") else []
    command = [
        "order-of",
        "mds",
        "docs",
        str(folder),
        *options,
        *more,
        "--python",
        str(PYTHON),
        "--json",
        "--root",
        url,
    ]
    code = main(command)
    said = capsys.readouterr()
    assert code == 0, said.err
    told = json.loads(said.out)
    with loader.Root(url) as root:
        view = loader.listed(root.open("docs").select("caption.txt"), told["list"])
        plan = loader.plan({"docs": view}, seed=1, global_batch=told["global_batch"], boundary="mask")
        with loader.Loader(plan, epochs=1, workers=0) as batches:
            return [sorted(int(one[1]) for one in batch.ids if one is not None) for batch in batches]


def theirs(peer, docs, world):
    said = peer("mds", "serve", docs[0], json.dumps({"state": None, **world, "port": next(_ports)}))
    return [sorted(one["ids"]) for one in said]


def world(nodes, ranks, workers, shuffle, batch_size=5):
    dataset = {"batch_size": batch_size, "shuffle": shuffle is not None, "shuffle_seed": 7}
    dataset |= {"shuffle_algo": shuffle} if shuffle else {}
    return {"nodes": nodes, "ranks": ranks, "workers": workers, "dataset": dataset}


@pytest.mark.parametrize("shuffle", [None, "py1e", "py1s"])
@pytest.mark.parametrize("size", [(1, 2, 2), (1, 1, 3)])
def test_every_step_has_the_samples_that_streaming_serves(docs, peer, capsys, size, shuffle):
    there = world(*size, shuffle)
    served = theirs(peer, docs, there)
    assert {number for step in served for number in step} == set(range(100))
    assert ours(capsys, docs, there) == served
    assert ours(capsys, docs, there, "--step", "4") == served[4:]


def test_epoch_that_was_resumed_in_another_world_continues(docs, peer, capsys, tmp_path):
    state = {
        "epoch": 0,
        "sample_in_epoch": 40,
        "num_canonical_nodes": 2,
        "shuffle_seed": 7,
        "initial_physical_nodes": 2,
    }
    (tmp_path / "state.json").write_text(json.dumps(state))
    there = world(1, 2, 1, "py1e")
    served = theirs(peer, docs, {**there, "state": state})
    assert len(served) == 6
    assert ours(capsys, docs, there, "--state", str(tmp_path / "state.json")) == served
    assert ours(capsys, docs, there, "--state", str(tmp_path / "state.json"), "--step", "2") == served[2:]
