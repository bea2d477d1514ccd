"""Indexes through the pages of a node's cache: no request at a second start, and no wrong byte."""

from collections import Counter
from dataclasses import replace

import pytest

import loader
from loader.cache.node_cache import OpenCache
from loader.cache.page_cache import Grant
from loader.cache.pages import object_prefix, page_name
from loader.dataset.shards import index, index_cache
from loader.dataset.shards.index import IndexPlace
from loader.run.ahead.remote_reads import ShardContents
from tests.cache.peers.nodes import running_nodes
from tests.run.round_server import RoundServer, request_kind

PAGE = 2**14
SHARDS = 4
STEPS = 6
LARGE = 8000
"""Samples of an index that is larger than the tail that is read first."""


class CountingServer(RoundServer):
    """A server whose `kinds` counts the requests by kind."""

    def __init__(self, objects):
        self.kinds = Counter()
        super().__init__(objects)

    def answer(self, request):
        self.kinds[request_kind(request.method, request.target)] += 1
        return super().answer(request)


@pytest.fixture
def server(memory_root):
    with memory_root.write("points", part_samples=20) as writer:
        for number in range(20 * SHARDS):
            writer.add(f"{number:05d}", {"bin": bytes([number]) * 1000})
    objects = {f"r/{info.key}": memory_root.store.get(info.key).data for info in memory_root.store.list("")}
    running = CountingServer(objects)
    yield running
    running.close()


def start(server, cache):
    """Open the root anew, and return the digests of its batches."""
    server.kinds.clear()
    with loader.Root("s3://bucket/r", options={**server.options, "retry_deadline_s": 0}) as root:
        plan = loader.plan({"p": root.open("points")}, seed=3, global_batch=16)
        with loader.Loader(plan, workers=0, steps=STEPS, framework="numpy", cache=cache) as batches:
            return [batch.digest for batch in batches]


def footers(memory_root):
    rows = memory_root.open("points").parts.shard_rows().to_pylist()
    return [(row["index_footer_sha256"], row["index_nbytes"]) for row in rows]


def index_pages(folder, memory_root):
    """Return the page files of the indexes in a folder."""
    prefixes = {object_prefix(f"{footer_sha256} index") for footer_sha256, _ in footers(memory_root)}
    files = [path for path in (folder / "pages").rglob("*") if path.is_file()]
    return [path for path in files if path.name[:16] in prefixes]


def put(spec, name, data):
    """Put a page into a folder."""
    opened = OpenCache(spec, lambda counter, amount: None)
    grant = opened.read(name, (), claim=len(data))
    assert isinstance(grant, Grant)
    opened.put(name, grant.nonce, data)
    opened.close()


def test_second_start_on_a_node_requests_no_index(server, memory_root, tmp_path):
    cache = loader.NodeCache(path=tmp_path / "cache", limit_bytes=2**24, page_bytes=PAGE)
    first = start(server, cache)
    assert server.kinds["index"] == SHARDS
    assert len(index_pages(tmp_path / "cache", memory_root)) == SHARDS
    assert start(server, cache) == first
    assert server.kinds["index"] == 0


def test_second_start_takes_indexes_from_peers(server, tmp_path):
    with running_nodes(tmp_path, 2, page_bytes=PAGE) as nodes:
        peers = [node.address for node in nodes]
        first = start(server, nodes[0].spec(peers))
        assert server.kinds["index"] == SHARDS
        assert start(server, nodes[1].spec(peers)) == first
        assert server.kinds["index"] == 0


def test_wrong_page_of_an_index_changes_no_batch_and_goes(server, memory_root, tmp_path):
    cache = loader.NodeCache(path=tmp_path / "cache", limit_bytes=2**24, page_bytes=PAGE)
    names = []
    for footer_sha256, nbytes in footers(memory_root):
        name = page_name(f"{footer_sha256} index", PAGE, 0)
        put(cache, name, bytes(nbytes))
        names.append(name)
    without = start(server, loader.NodeCache(path=tmp_path / "other", limit_bytes=2**24, page_bytes=PAGE))
    assert start(server, cache) == without
    assert server.kinds["index"] == SHARDS
    assert not {path.name for path in index_pages(tmp_path / "cache", memory_root)}.intersection(names)
    start(server, cache)
    assert server.kinds["index"] == SHARDS
    start(server, cache)
    assert server.kinds["index"] == 0


def test_indexes_stay_open_after_their_loader_closes(memory_root, tmp_path, monkeypatch):
    """A large index keeps its store; a closed cache loses no page by it."""
    for module in (index, index_cache):
        monkeypatch.setattr(module, "WHOLE_BELOW_BYTES", 0)
    with memory_root.write("large") as writer:
        for number in range(LARGE):
            writer.add(f"{number * 2**44 // 7:016x}", {"bin": bytes([number % 251]) * (10 + number % 7)})
    version = memory_root.open("large")
    plan = loader.plan({"p": version}, seed=3, global_batch=2)
    folder = tmp_path / "cache"
    cache = loader.NodeCache(path=folder, limit_bytes=2**24, page_bytes=PAGE)
    with loader.Loader(plan, workers=0, steps=1, framework="numpy", cache=cache) as batches:
        next(batches)
    pages = {path.name for path in (folder / "pages").rglob("*") if path.is_file()}
    assert pages
    monkeypatch.setattr(OpenCache, "read_all", lambda cache, questions: pytest.fail("the cache is closed"))
    keys = version.keys(range(len(version)))
    assert len(set(keys)) == LARGE
    assert {path.name for path in (folder / "pages").rglob("*") if path.is_file()} == pages


def test_index_without_a_footer_hash_or_on_a_disk_has_no_pages(memory_root, tmp_path):
    with memory_root.write("points") as writer:
        writer.add("a", {"bin": b"a"})
    version = memory_root.open("points")
    place = IndexPlace.of(version.parts.shard("media", 0))
    contents = ShardContents(version)
    assert contents.index_content(place).nbytes == place.nbytes
    assert contents.index_content(replace(place, footer_sha256="")) is None
    with loader.Root(tmp_path / "root") as root:
        with root.write("points") as writer:
            writer.add("a", {"bin": b"a"})
        local = root.open("points")
    assert ShardContents(local).index_content(IndexPlace.of(local.parts.shard("media", 0))) is None
