"""Lists of ranges: one question for all that a call needs of an owner."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.cache.page_cache import Absence, Grant, PageQuestion
from loader.cache.pages import page_name
from loader.cache.peers.heads import (
    ANSWER_HEAD_BYTES,
    HEAD_END,
    LIST_BYTES,
    MOST_RANGES,
    BadHead,
    PageRange,
    parse_head,
    parse_ranges,
    parse_ranges_head,
    ranges_head,
    ranges_request,
)
from loader.cache.peers.page_questions import TOGETHER_BYTES, receive_parts
from loader.cache.peers.peer_cache import PeerCache
from tests.cache.peers.nodes import PAGE, running_nodes
from tests.cache.peers.test_peer_cache import answer, false_peer

NAME = "0123456789abcdef0123456789abcdef01234567"
RANGES = st.lists(
    st.builds(
        lambda name, start, nbytes: PageRange(name, start, start + nbytes),
        st.text("0123456789abcdef", min_size=40, max_size=40),
        st.integers(0, 10**11),
        st.integers(1, 10**11),
    ),
    min_size=1,
    max_size=MOST_RANGES,
)


@given(RANGES)
def test_list_is_parsed_as_it_was_written(ranges):
    request = ranges_request("10.0.0.1:7070", "Authorization: Bearer secret-of-16-letters\r\n", ranges)
    head, _, body = request.partition(HEAD_END)
    assert parse_head(head).nbytes == len(body) <= LIST_BYTES
    assert parse_ranges(body) == ranges


@given(st.lists(st.tuples(st.integers(1, 10**9), st.booleans()), min_size=1, max_size=MOST_RANGES))
def test_head_of_an_answer_names_the_present_ranges(ranges):
    sizes = [nbytes for nbytes, _ in ranges]
    present = sum(1 << number for number, (_, is_here) in enumerate(ranges) if is_here)
    total = sum(nbytes for nbytes, is_here in ranges if is_here)
    head = ranges_head(total, present)
    assert len(head) == ANSWER_HEAD_BYTES
    assert parse_ranges_head(head, sizes) == (total, present)
    assert parse_ranges_head(ranges_head(total + 1, present), sizes) is None
    assert parse_ranges_head(ranges_head(total, present | 1 << len(sizes)), sizes) is None


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (f"{NAME} 0-4".encode(), 400),
        (f"{NAME[1:]} 0-4\n".encode(), 400),
        (f"x{NAME} 0-4\n".encode(), 400),
        (f"{NAME} 0-4\n{NAME} ".encode(), 400),
        (f"../../{NAME} 0-4\n".encode(), 400),
        (f"{NAME} 5-3\n".encode(), 416),
        (f"{NAME} 0-4\n".encode() * (MOST_RANGES + 1), 400),
    ],
)
def test_wrong_list_is_refused(body, status):
    with pytest.raises(BadHead) as refused:
        parse_ranges(body)
    assert refused.value.status == status


class Cluster:
    """A reader on the first of two nodes, and pages that the second one owns."""

    def __init__(self, nodes, pages):
        self.counts = {}
        self.cache = PeerCache(nodes[0].spec([node.address for node in nodes]), self._count)
        self.pages = {}  # name -> bytes
        number = 0
        while len(self.pages) < pages:
            name = page_name("0" * 64, PAGE, number)
            number += 1
            if not self.cache.is_own(name):
                self.pages[name] = os.urandom(PAGE)

    def fill(self, names):
        for name in names:
            grant = self.cache.read(name, (), claim=PAGE)
            assert isinstance(grant, Grant)
            assert self.cache.put(name, grant.nonce, self.pages[name])
            while not isinstance(self.cache.read(name, ()), list):
                pass  # the sender is at work

    def _count(self, name, amount):
        self.counts[name] = self.counts.get(name, 0) + amount


def test_present_pages_come_and_missing_ones_are_named(tmp_path):
    with running_nodes(tmp_path, 2) as nodes:
        cluster = Cluster(nodes, MOST_RANGES)
        names = list(cluster.pages)
        cluster.fill(names[::2])
        cuts = [slice(7, 3000), slice(PAGE - 1, PAGE)]  # together more than a list has
        questions = [PageQuestion(name, cuts, None) for name in names]
        cluster.counts.clear()
        answers = cluster.cache.read_present(questions)
        for number, (name, data) in enumerate(zip(names, answers, strict=True)):
            if number % 2:
                assert data is Absence.NOT_KEPT
            else:
                page = cluster.pages[name]
                assert [bytes(piece) for piece in data] == [page[7:3000], page[-1:]]
        assert cluster.counts["cache_peer_hits"] == cluster.counts["cache_peer_misses"] == MOST_RANGES // 2
        assert cluster.counts["cache_peer_bytes"] == MOST_RANGES // 2 * 2994
        assert "cache_peer_down" not in cluster.counts
        cluster.cache.close()


@given(st.lists(st.tuples(st.integers(1, 2 * TOGETHER_BYTES), st.booleans()), max_size=MOST_RANGES))
def test_ranges_are_received_in_order_and_in_small_parts(ranges):
    sizes = [nbytes for nbytes, _ in ranges]
    present = sum(1 << number for number, (_, is_here) in enumerate(ranges) if is_here)
    parts = list(receive_parts(present, sizes))
    numbers = [number for part in parts for number in part]
    assert numbers == [number for number, (_, is_here) in enumerate(ranges) if is_here]
    for part in parts:
        assert sum(sizes[number] for number in part[:-1]) < TOGETHER_BYTES
    for part in parts[:-1]:
        assert sum(sizes[number] for number in part) >= TOGETHER_BYTES


def test_large_range_is_not_cut_from_the_whole_answer(tmp_path, monkeypatch):
    """Its bytes would be copied, from memory that the kernel gives and takes with each answer."""
    monkeypatch.setattr("loader.cache.peers.page_questions.TOGETHER_BYTES", 2000)
    with running_nodes(tmp_path, 2) as nodes:
        cluster = Cluster(nodes, 3)
        cluster.fill(cluster.pages)
        cuts = [slice(0, 10), slice(10, 20), slice(100, 2100), slice(1, PAGE)]
        questions = [PageQuestion(name, cuts, None) for name in cluster.pages]
        for page, pieces in zip(cluster.pages.values(), cluster.cache.read_present(questions), strict=True):
            assert pieces == [page[cut] for cut in cuts]
            assert [type(piece) for piece in pieces] == [memoryview, memoryview, memoryview, bytes]
        cluster.cache.close()


def test_range_behind_a_page_is_refused(tmp_path):
    """A reader with another page size gets no bytes, and an answer."""
    with running_nodes(tmp_path, 2) as nodes:
        cluster = Cluster(nodes, 1)
        cluster.fill(cluster.pages)
        client = cluster.cache._client
        (name,) = cluster.pages
        request = ranges_request(nodes[1].address, "", [PageRange(name, 0, PAGE + 1)])
        reply = client.begin(nodes[1].address, [request]).answer(1e9)
        assert (reply.status, reply.text) == (416, f"the page {name} has {PAGE} bytes")
        long = client.request(nodes[1].address, "POST", "/v1/ranges", body=b"x" * (LIST_BYTES + 1))
        assert client.begin(nodes[1].address, [long]).answer(1e9).status == 413
        cluster.cache.close()


LIES = {
    "fewer bytes than ranges": lambda head: ranges_head(3, 1) + b"x" * 3,
    "a range that was not asked for": lambda head: ranges_head(5, 2) + b"x" * 5,
    "more bytes than a text": lambda head: answer(200, b"x" * 9000),
    "another status": lambda head: answer(503, b"busy"),
    "a server without lists": lambda head: answer(404, b"unknown path"),
    "a body that is cut": lambda head: ranges_head(5, 1) + b"xx",
    "closes": lambda head: None,
}


@pytest.mark.parametrize("lie", LIES)
def test_wrong_answer_to_a_list_drops_the_peer(tmp_path, caplog, lie):
    with running_nodes(tmp_path, 1, is_patient=False) as nodes, false_peer(LIES[lie]) as liar:
        cache = PeerCache(nodes[0].spec([nodes[0].address, liar]), lambda *_: None)
        names = [page_name("0" * 64, PAGE, number) for number in range(40)]
        name = next(name for name in names if not cache.is_own(name))
        assert cache.read_present([PageQuestion(name, [slice(0, 5)], None)]) == [Absence.NOT_KEPT]
        assert cache._client.left_out() == [liar]
        assert f"{liar} is left out" in caplog.text
        cache.close()
