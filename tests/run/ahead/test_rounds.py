"""How many requests wait for one another until the first batch is there: counted by a server that answers in rounds."""

import json
import os
import threading
from collections import Counter

import pytest

import loader
from loader.dataset.shards import index, index_cache
from loader.storage import ByteRange
from loader.storage.stream import plan_reads
from tests.run.round_server import RoundServer
from tests.servers.processes import python

BATCH, ROW_BYTES = 32, 3_000


def write(root, publishes, shards_each, first=0):
    """A version of so many publishes, of so many shards of 20 samples each."""
    for number in range(first, first + publishes):
        with root.write("large", part_samples=20) as writer:
            for i in range(20 * shards_each):
                writer.add(f"{number:03d}/{i:05d}", {"bin": bytes([i % 251]) * ROW_BYTES})


def expected_rounds(root, step):
    """The requests of each round, by what they are for: of an open and of the first batch, from this step on."""
    version = root.open("large@latest")
    plan = make_plan(version)
    places = [one.fields["bin"] for one in version.address(plan.slots(step).ordinal, ["bin"])]
    shards = {place.path for place in places}
    gap = 64 * 2**10
    reads = [
        plan_reads([ByteRange(at.offset, at.nbytes) for at in places if at.path == path], gap, 2**24)
        for path in shards
    ]
    entries = root.state.n + 1  # every entry since the hint, and the one that may be there by now
    return [
        {"marker": 1, "listing": 1, "start": 1},
        {"log": entries, "lease": 1, "manifest": 1},
        {"log": 1, "parts": len(version.manifest["shards"])},  # nobody has retired it; where its parts lie
        {"index": len(shards)},
        {"samples": sum(map(len, reads))},
    ]


def rounds_without_start(root, step):
    """The same if nothing guesses the version: the lease and the manifest wait for the log."""
    first, second, *others = expected_rounds(root, step)
    return [first, {"log": second.pop("log")}, second, *others]


def plan_rounds(root, step, notes=True):
    """The same for a saved plan: it names the version, so the lease, and with notes the manifest, wait for no log."""
    _, opening, tables, *others = expected_rounds(root, step)
    head = {"marker": 1, "listing": 1, "plan": 1, "notes": 1}
    if notes:
        return [head, opening, tables, *others]
    opening.pop("manifest")
    parts = {"parts": tables["parts"]}
    return [head, opening, {"log": 1, "manifest": 1}, parts, *others]


def make_plan(version):
    return loader.plan({"large": version.select("bin")}, seed=5, global_batch=BATCH)


@pytest.fixture
def serve_rounds():
    """serve_rounds(root in memory) -> a server of its objects, in rounds."""
    servers = []

    def serve(root):
        objects = {f"r/{info.key}": root.store.get(info.key).data for info in root.store.list("")}
        servers.append(RoundServer(objects))
        return servers[-1]

    yield serve
    for server in servers:
        server.rounds.free()
        server.close()


def check_rounds(server, rounds, step, opened):
    """Compare the requests up to the first batch with these rounds. opened: function from the root to the plan."""
    server.rounds.lock_step()
    got = []

    def first_batch():
        with loader.Root("s3://bucket/r", options={**server.options, "retry_deadline_s": 0}) as root:
            plan = opened(root)
            with loader.Loader(plan, 0, 1, workers=2, framework="numpy", decode=False) as batches:
                batches.load_state_dict(plan.state(step))
                got.append(next(batches))
                server.rounds.free()

    reader = threading.Thread(target=first_batch, daemon=True)
    reader.start()
    try:
        for one in rounds:
            server.rounds.answer(Counter(one))
    finally:
        server.rounds.free()
        reader.join()
    assert len(got[0]["bin"]) == BATCH
    assert len({data[0] for data in got[0]["bin"]}) > 1


@pytest.mark.parametrize(("publishes", "shards_each", "step"), [(1, 4, 0), (1, 4, 10**6), (25, 2, 10**6)])
def test_rounds_to_the_first_batch(publishes, shards_each, step, memory_root, serve_rounds):
    """However many publishes and shards there are, and wherever it begins: four before the samples."""
    write(memory_root, publishes, shards_each)
    rounds = expected_rounds(memory_root, step)
    assert len(rounds) == 4 + 1
    check_rounds(serve_rounds(memory_root), rounds, step, lambda root: make_plan(root.open("large@latest")))


@pytest.mark.parametrize("ref", ["large", "large@2", "large@1", "large@prod"])
def test_rounds_of_each_name(ref, memory_root, serve_rounds):
    write(memory_root, 2, 2)
    memory_root.alias("large@1", "prod")
    rounds = expected_rounds(memory_root, 0)[:2]
    check_rounds(serve_rounds(memory_root), rounds, 0, lambda root: make_plan(root.open(ref)))


@pytest.mark.parametrize("guess", ["none", "wrong"])
def test_rounds_without_a_right_guess(guess, memory_root, serve_rounds):
    """As many as an earlier release had."""
    start = "starts/large.json"
    write(memory_root, 1, 4)
    early = memory_root.store.get(start).data
    write(memory_root, 1, 4, first=1)
    memory_root.store.delete_many([start])
    rounds = rounds_without_start(memory_root, 0)
    assert len(rounds) == 5 + 1
    if guess == "wrong":
        memory_root.store.put(start, early)
        rounds[1] |= {"lease": 1, "manifest": 1}
    check_rounds(serve_rounds(memory_root), rounds, 0, lambda root: make_plan(root.open("large@latest")))


@pytest.mark.parametrize(("publishes", "shards_each", "step"), [(1, 4, 0), (25, 2, 7)])
def test_rounds_to_the_first_batch_of_a_saved_plan(publishes, shards_each, step, memory_root, serve_rounds):
    """Four before the samples."""
    write(memory_root, publishes, shards_each)
    saved = make_plan(memory_root.open("large@latest")).save(memory_root)
    rounds = plan_rounds(memory_root, step)
    assert len(rounds) == 4 + 1
    check_rounds(serve_rounds(memory_root), rounds, step, lambda root: loader.open_plan(root, saved))


def test_rounds_of_a_large_index(memory_root, serve_rounds, monkeypatch):
    """Its footer has the places of the row groups, which are requested with it."""
    for module in (index, index_cache):
        monkeypatch.setattr(module, "WHOLE_BELOW_BYTES", 0)
    with memory_root.write("large") as writer:
        for i in range(8_000):  # four row groups, more than the tail that is read first
            writer.add(f"{i * 2**44 // 7:016x}", {"bin": bytes([i % 251]) * (10 + i % 7)})
    rounds = expected_rounds(memory_root, 0)[:-1]
    rounds[-1] = {"index": 1 + 4}
    check_rounds(serve_rounds(memory_root), rounds, 0, lambda root: make_plan(root.open("large@latest")))


def test_rounds_of_a_plan_that_an_earlier_release_saved(memory_root, serve_rounds):
    """It has no start notes."""
    write(memory_root, 1, 4)
    saved = make_plan(memory_root.open("large@latest")).save_content(memory_root)
    rounds = plan_rounds(memory_root, 0, notes=False)
    check_rounds(serve_rounds(memory_root), rounds, 0, lambda root: loader.open_plan(root, saved))


def test_rounds_of_a_saved_mixture(memory_root, serve_rounds):
    """All versions are opened together."""
    names = ("large", "small", "third")
    for name in names:
        with memory_root.write(name) as writer:
            for i in range(64):
                writer.add(f"{i:05d}", {"bin": bytes([i % 251]) * ROW_BYTES})
    views = {name: memory_root.open(name).select("bin") for name in names}
    saved = loader.plan(views, seed=5, global_batch=BATCH).save(memory_root)
    n = len(names)
    entries = memory_root.state.n + 1
    rounds = [
        {"marker": 1, "listing": 1, "plan": 1, "notes": 1},
        {"log": entries, "lease": 1, "manifest": n},
        {"log": 1, "parts": n},
        {"index": n},
    ]
    check_rounds(serve_rounds(memory_root), rounds, 0, lambda root: loader.open_plan(root, saved))


FIRST_BATCH = """
import gc, json, sys
import numpy, pyarrow  # which a training has imported

generated, collected = [0], []
sys.addaudithook(lambda event, given: generated.append(1) if event == "compile" and given[1] == "<string>" else None)
gc.callbacks.append(lambda phase, about: collected.append(1) if phase == "start" else None)
before = set(sys.modules)
gc.collect()  # else the first look depends on what was allocated before
collected.clear()
import loader

loader.Root, loader.plan, loader.Loader
looks = len(collected)

with loader.Root(sys.argv[1], options=json.loads(sys.argv[2])) as root:
    plan = loader.plan({"large": root.open("large@latest")}, seed=5, global_batch=8)
    with loader.Loader(plan, 0, 1, framework="numpy", decode=False) as batches:
        assert len(next(batches)["bin"]) == 8
modules = set(sys.modules) - before
print(
    json.dumps(
        {
            "heavy": sorted(set(json.loads(sys.argv[3])) & set(sys.modules)),
            "ours": sum(name.startswith("loader.") for name in modules),
            "others": sum(not name.startswith("loader") for name in modules),
            "generated": sum(generated),
            "collections": looks,  # 20 without a pause
            "collector": gc.isenabled(),
        }
    )
)
"""

MOST = {
    "disk": {"ours": 170, "others": 60, "generated": 535, "collections": 4},
    "s3": {"ours": 205, "others": 70, "generated": 580, "collections": 4},
}
"""What a first batch costs at most: modules, functions that dataclasses and named tuples compile, and looks of the
collector of cycles while modules are imported."""

HEAVY = (
    *("numpy.ma", "numpy.random", "pandas", "polars", "pyarrow.compute", "pyarrow.dataset", "torch"),
    *("asyncio", "html", "http.client", "multiprocessing", "sqlite3", "tempfile", "urllib.request"),
    *(
        "loader.dataset.publishing.writer",
        "loader.dataset.publishing.publish",
        "loader.dataset.publishing.commit",
    ),
    "loader.dataset.publishing.publication_gate",
    *("loader.dataset.writing", "loader.run.workers"),
)


@pytest.mark.parametrize("store", ["disk", "s3"])
def test_nothing_heavy_is_imported_on_the_way_to_the_first_batch(store, tmp_path, memory_root, serve_rounds):
    """pandas, which pyarrow imports where it may, takes a start longer than the store does.

    Nor does the collector look for cycles among all that torch has made while modules are imported.
    """
    if store == "disk":
        url, options = str(tmp_path / "root"), None
        with loader.Root(url) as root:
            write(root, 2, 2)
    else:
        write(memory_root, 2, 2)
        url, options = "s3://bucket/r", serve_rounds(memory_root).options
    done = python(
        "-c",
        FIRST_BATCH,
        url,
        json.dumps(options),
        json.dumps(HEAVY),
        check=True,
        env={name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
    )
    seen = json.loads(done.stdout)
    assert seen["heavy"] == []
    assert seen["collector"]
    assert {name: n for name, n in MOST[store].items() if seen[name] > n} == {}, seen


DECODER = """
import gc
from loader.modalities import find_decoder

looks = []
gc.callbacks.append(lambda phase, about: looks.append(1) if phase == "start" else None)
find_decoder("jpg")
print(len(looks))
"""


def test_decoder_is_imported_without_the_collector():
    """Once after it, not eight times meanwhile: each may look at all objects of the training."""
    done = python("-c", DECODER, check=True)
    assert int(done.stdout) <= 1
