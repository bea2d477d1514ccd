"""`python -m benchmarks.fleet_start`: what a rank asks for, and 200 simulated ranks. No speed is asserted."""

import pickle
import time
from collections import Counter
from itertools import groupby

import numpy as np
import pytest

import loader
from benchmarks.fleet_start import counts
from benchmarks.fleet_start.__main__ import CASES, NOW, count, fleet_of
from benchmarks.fleet_start.rank import BATCH, DATASET, RUN
from benchmarks.fleet_start.simulation import Case, Fleet, Prefix, Simulation
from benchmarks.latency_server import BUCKET, CREDENTIALS, latency_store
from penstock.train.start_requests import StartRequests, newest_checkpoint, start_requests

CASE = {case.name: case for case in CASES}


def fleet(ranks=200, reads_per_s=110):
    return Fleet(ranks=ranks, reads_per_s=reads_per_s, opening=[2, 63, 2, 4], rest=[1, 8, 8])


def test_fleet_with_a_plan_from_its_first_rank_loses_no_rank():
    outcome = Simulation(fleet(), CASE[NOW], seed=1).run()
    assert outcome.lost == 0
    assert outcome.throttled > 0
    assert outcome.everywhere_s < 60


def test_fleet_whose_ranks_each_open_the_root_loses_ranks():
    outcome = Simulation(fleet(100, 55), CASE["each opens the root, budget 60 s"], seed=1).run()
    assert outcome.lost > 0
    assert outcome.everywhere_s is None


def test_fleet_within_the_rate_is_never_throttled_and_one_seed_is_one_outcome():
    alone = Simulation(fleet(ranks=8, reads_per_s=5500), Case(name="", opens="each"), seed=2)
    outcome = alone.run()
    assert (outcome.throttled, outcome.answered) == (0, 8 * (2 + 63 + 2 + 4 + 1 + 8 + 8))
    again = Simulation(fleet(ranks=8, reads_per_s=5500), Case(name="", opens="each"), seed=2).run()
    assert again.first_s == outcome.first_s


def test_prefix_answers_its_rate_and_a_second_of_burst():
    prefix = Prefix(100)
    assert sum(prefix.admits(0.0) for _ in range(300)) == 100
    assert sum(prefix.admits(1 + number / 1000) for number in range(1000)) == pytest.approx(200, abs=2)


def test_rank_with_another_ranks_plan_reads_only_indexes_and_samples(tmp_path, monkeypatch):
    with loader.Root(tmp_path) as root:
        for number in range(3):  # so that there are several tables of shards
            with root.write("points", part_samples=2) as writer:
                for k in range(16):
                    writer.add(f"{number}-{k:02d}", {"x.npy": np.arange(1000)})
    with latency_store(tmp_path, record=True) as server:
        for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": server.options["endpoint_url"]}.items():
            monkeypatch.setenv(name, value)  # secrets do not travel
        version = loader.Root(f"s3://{BUCKET}").open("points")
        assert len(version.manifest["shards"]) > 1
        sent = pickle.dumps(loader.plan({"points": version}, seed=7, global_batch=16))
        plan = pickle.loads(sent)  # noqa: S301 - what it just dumped
        server.recorded()
        with loader.Loader(plan, loader.World(rank=1, world_size=2), framework="numpy") as batches:
            next(iter(batches))
            time.sleep(0.2)
            asked = Counter(counts.kind_of(one["target"]) for one in server.recorded())
    assert asked.keys() == {"index", "samples"}
    assert max(asked.values()) <= 8


def test_two_real_ranks_are_counted_up_to_their_second_batch(tmp_path, tmp_path_factory):
    saved_plan = counts.make_root(tmp_path, publishes=9)
    each, saved, first = (counts.counted(tmp_path, plans) for plans in ("each", saved_plan, "first"))
    assert first.by_kind() == {"checkpoint": 1, "index": 8, "samples": 8}
    assert (sum(map(len, first.opening)), first.ahead) == (0, 0)
    assert each.by_kind() - first.by_kind() == Counter(
        listing=1,
        marker=1,
        start=1,
        log=each.by_kind()["log"],
        manifest=1,
        lease=1,
        shards=len(each.opening[-1]) - 1,
    )
    assert saved.by_kind() - each.by_kind() == Counter(plan=2), "the plan and its start notes"
    assert len(saved.opening) == len(each.opening)
    second = counts.counted(tmp_path, "first", tmp_path_factory.mktemp("caches"))
    assert second.by_kind() == {"checkpoint": 1}, "the nodes' caches have samples and indexes"
    assert [len(wave) for wave in first.waves] == fleet_of(each, first, 10, 5500).rest
    with loader.Root(tmp_path) as root:
        plan = loader.plan({DATASET: root.open(DATASET)}, seed=7, global_batch=BATCH * counts.RANKS)
        computed = start_requests(plan, counts.RANKS, newest_checkpoint(root, RUN))
    assert computed == StartRequests(checkpoint=1, indexes=8, samples=8), "what --dry-run prints"
    kinds = [kind for wave in first.waves for kind in wave]  # a busy machine may divide a wave
    assert computed.waves == [len(list(same)) for _, same in groupby(kinds)]
    assert count(first).startswith("17 in ")
    assert "(8 index" in count(first)
