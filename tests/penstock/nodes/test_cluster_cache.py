"""`penstock cache fill` and `ls` over nodes of this process and a bucket that counts."""

import itertools
import json

import numpy as np
import pytest

import loader
from loader.cache.peers.handler import PageAnswers
from loader.cache.spec import NodeCache
from penstock.cli import main
from penstock.nodes.cache_fill import fill_pages
from penstock.nodes.cache_status import node_statuses
from tests.cache.peers.nodes import running_nodes

PAGE = 65536
SAMPLES = 200
_numbers = itertools.count()


@pytest.fixture
def version():
    """Return a version in a bucket."""
    generator = np.random.default_rng(3)
    with loader.Root(f"memory://cluster-cache-{next(_numbers)}") as root:
        with root.write("points", part_samples=50) as writer:
            for number in range(SAMPLES):
                value = generator.integers(0, 256, 5000, np.uint8)
                writer.add(f"{number:05d}", {"x.npy": value})
        yield root.open("points")


@pytest.fixture
def nodes(tmp_path):
    with running_nodes(tmp_path / "nodes", 2, page_bytes=PAGE) as running:
        yield running


def specs(nodes):
    peers = [node.address for node in nodes]
    return [NodeCache(path=node.folder, limit_bytes=10**8, page_bytes=PAGE, peers=peers) for node in nodes]


def test_training_after_a_fill_reads_no_shard(version, nodes):
    reports = [fill_pages(version, spec, None) for spec in specs(nodes)]
    assert all(report.fetched > 0 for report in reports)
    assert sum(report.fetched for report in reports) == reports[0].pages + reports[0].elsewhere
    rows = version.parts.shard_columns(next(iter(version.manifest["groups"])), "nbytes", "index_nbytes")
    assert sum(report.nbytes for report in reports) == sum(sum(row.values()) for row in rows)
    plan = loader.plan({"points": version}, seed=1, global_batch=10)
    with loader.Loader(plan, cache=specs(nodes)[0], workers=0, framework="numpy", steps=20) as batches:
        assert sum(len(batch["x.npy"]) for batch in batches) == SAMPLES
        metrics = batches.metrics()
    assert metrics["cache_misses_total"] == 0
    assert metrics["cache_peer_hits_total"] > 0


def test_filled_epoch_asks_a_peer_only_for_bytes(version, nodes, monkeypatch):
    for spec in specs(nodes):
        fill_pages(version, spec, None)
    ranges = []
    send_page = PageAnswers.send_page

    def record_range(answers, exchange, request):
        ranges.append(request.cut)
        send_page(answers, exchange, request)

    monkeypatch.setattr(PageAnswers, "send_page", record_range)
    plan = loader.plan({"points": version}, seed=1, global_batch=10)
    with loader.Loader(plan, cache=specs(nodes)[0], workers=0, framework="numpy", steps=20) as batches:
        assert len(list(batches)) == 20
    assert len(ranges) > 0
    assert None not in ranges


def test_second_fill_reads_nothing(version, nodes):
    spec = specs(nodes)[0]
    first = fill_pages(version, spec, None)
    assert fill_pages(version, spec, None) == first._replace(fetched=0)


def test_predicate_chooses_pages(version, nodes):
    all_pages = sum(fill_pages(version, spec, None).pages for spec in specs(nodes))
    pages = sum(fill_pages(version, spec, "key < '00005'").pages for spec in specs(nodes))
    assert 1 < pages <= 4 + 5 < all_pages  # at most an index and a page for each sample


def test_pages_without_room_are_counted(version, nodes):
    peers = [node.address for node in nodes]
    spec = NodeCache(path=nodes[0].folder, limit_bytes=8 * PAGE, page_bytes=PAGE, peers=peers)
    report = fill_pages(version, spec, None)
    assert report.refused > 0
    assert report.nbytes <= 8 * PAGE


def test_list_of_nodes_includes_unreachable_ones(nodes, capsys):
    addresses = [node.address for node in nodes]
    nodes[1].stop()
    first, second = node_statuses(",".join(addresses), None)
    by_address = {first.address: first, second.address: second}
    assert by_address[addresses[0]].error == ""
    assert by_address[addresses[1]].error != ""
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["cache", "ls", "--json", "--peers", ",".join(addresses)]))
    assert ended.value.code == 1
    rows = json.loads(capsys.readouterr().out)
    assert {row["address"] for row in rows} == set(addresses)
