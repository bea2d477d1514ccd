"""System calls of a page from a peer, on both sides: calls of the C functions that make one."""

import sys
import threading
import time
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from loader.cache.page_cache import Grant, PageQuestion
from loader.cache.pages import page_name
from loader.cache.peers.heads import (
    ANSWER_HEAD_BYTES,
    HEAD_END,
    PageRequest,
    page_answer_head,
    page_request,
    page_request_head,
    parse_head,
    parse_page_request,
)
from loader.cache.peers.peer_cache import PeerCache
from loader.cache.peers.server import THREAD_NAME
from tests.cache.peers.nodes import PAGE, running_nodes
from tests.servers.patience import PATIENCE_S

MODULES = ("posix", "select", "fcntl")
TYPES = ("socket", "epoll", "poll")
NO_CALLS = ("fileno", "fspath")
"""Functions of these modules that ask the kernel for nothing."""
PAGES = 24
READER_PAGE = {"recv": 2}
"""The head, and the body into its own memory."""
SERVER_PAGE = {"fstat": 1, "preadv": 1, "send": 1}
SERVER_CALL = {"recv": 1, "epoll.modify": 1}
"""A wait for the next event follows each `epoll.modify`."""
READER_CALL = {"sendall": 1}
SERVER_RANGE = {"fstat": 1, "preadv": 1}
"""For each range of a list. One send carries the bytes of many ranges."""
SERVER_LIST = {**SERVER_CALL, "send": 2}
"""72 kB leave in two parts."""
READER_LIST = {"sendall": 1, "recv": 3}
"""One head, and 72 kB in two parts."""


class SystemCalls:
    """Counts system calls of the reading thread, and of a server's threads that begin meanwhile."""

    def __init__(self):
        self.reader = Counter()
        self.server = Counter()
        self._latest = {}  # thread of the server -> its latest call

    def __call__(self, frame, event, function):
        if event != "c_call":
            return
        owner = type(getattr(function, "__self__", None)).__name__
        name = function.__name__
        if owner not in TYPES and getattr(function, "__module__", None) not in MODULES:
            return
        if name in NO_CALLS:
            return
        if owner == "epoll":
            name = f"epoll.{name}"
        thread = threading.current_thread()
        if thread is threading.main_thread():
            self.reader[name] += 1
        elif thread.name.startswith(THREAD_NAME):
            self._latest[thread.name, thread.ident] = name
            # A thread that waits also looks for idle connections now and then.
            if name != "epoll.poll":
                self.server[name] += 1

    def settle(self):
        """Wait until all threads of the server wait for requests."""
        deadline_s = time.monotonic() + PATIENCE_S
        while set(self._latest.values()) != {"epoll.poll"}:
            assert time.monotonic() < deadline_s, self._latest
            time.sleep(0.001)


def test_page_of_a_peer_takes_few_system_calls(tmp_path):
    calls = SystemCalls()
    threading.setprofile(calls)
    try:
        with running_nodes(tmp_path, 2) as nodes:
            peers = [node.address for node in nodes]
            cache = PeerCache(nodes[0].spec(peers), lambda *_: None)
            names = []
            for number in range(100):
                name = page_name("0" * 64, PAGE, number)
                if not cache.is_own(name):
                    names.append(name)
            names = names[:PAGES]
            for name in names:
                grant = cache.read(name, (), claim=PAGE)
                assert isinstance(grant, Grant)
                cache.put(name, grant.nonce, bytes(PAGE))
            questions = [PageQuestion(name, [slice(7, 3000)], None) for name in names]
            while not all(isinstance(answer, list) for answer in cache.read_all(questions)):
                pass  # the sender is at work
            one_by_one = count_system_calls(
                calls, lambda: [cache.read_all([question]) for question in questions]
            )
            together = count_system_calls(calls, lambda: cache.read_all(questions))
            by_list = count_system_calls(calls, lambda: cache.read_present(questions))
            cache.close()
    finally:
        threading.setprofile(None)
    assert one_by_one == (total(READER_CALL, READER_PAGE, PAGES), total(SERVER_CALL, SERVER_PAGE, PAGES))
    assert together == (total(READER_CALL, READER_PAGE, 1), total(SERVER_CALL, SERVER_PAGE, 1))
    assert by_list == (READER_LIST, total(SERVER_LIST, SERVER_RANGE, 1))


def count_system_calls(calls, read):
    """Return the system calls of a read: of the reader, and of the server."""
    calls.settle()
    calls.reader.clear()
    calls.server.clear()
    sys.setprofile(calls)
    try:
        answers = read()
    finally:
        sys.setprofile(None)
    assert answers
    calls.settle()
    return dict(calls.reader), dict(calls.server)


def total(call, page, calls):
    """Return the system calls of PAGES pages in so many calls."""
    counts = Counter({name: n * calls for name, n in call.items()})
    counts.update({name: n * PAGES for name, n in page.items()})
    return dict(counts)


_hex = "0123456789abcdef"
PAGE_REQUESTS = st.builds(
    PageRequest,
    st.text(_hex, min_size=40, max_size=40),
    st.tuples(st.integers(0, 10**9), st.integers(1, 10**9)).map(lambda cut: (cut[0], cut[0] + cut[1])),
    st.one_of(st.none(), st.integers(0, 10**9)),
    st.text(_hex, min_size=32, max_size=32),
    st.one_of(st.just(""), st.text(_hex, min_size=32, max_size=32)),
)


@given(PAGE_REQUESTS, st.sampled_from(["", "Authorization: Bearer secret-of-16-letters\r\n"]), st.binary())
def test_both_ways_to_parse_a_request_agree(page, authorization, following):
    head = page_request_head("10.0.0.1:7070", authorization, page).encode()
    exact = parse_page_request(head + following)
    general = parse_head(head.removesuffix(HEAD_END))
    assert exact.end == len(head)
    assert exact.authorization.decode() == general.headers.get("authorization", "")
    assert page_request(page.name, general) == exact.page
    expected = page
    if page.claim_bytes is None:
        expected = page._replace(nonce="")
    assert exact.page == expected


@given(st.integers(0, 10**9), st.integers(1, 10**9))
def test_head_before_a_page_has_its_size(start, nbytes):
    assert len(page_answer_head(start, start + nbytes, 2 * 10**9)) == ANSWER_HEAD_BYTES
