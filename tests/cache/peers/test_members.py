"""The members of a cluster's cache, and the owners of pages."""

import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.cache.addresses import parse_peers, split_address
from loader.cache.peers.members import CacheMembers, is_local, slurm_addresses
from loader.errors import InvalidRuntime
from tests.servers.patience import PATIENCE_S

NAMES = [f"{number:040x}" for number in range(2000)]


def addresses(n):
    return tuple(f"10.0.0.{number}:7070" for number in range(1, n + 1))


@given(st.permutations(addresses(6)))
def test_owner_does_not_depend_on_the_order_of_the_members(order):
    assert [CacheMembers(order).owner(name) for name in NAMES[:50]] == [
        CacheMembers(addresses(6)).owner(name) for name in NAMES[:50]
    ]


def test_owners_are_spread_evenly():
    members = CacheMembers(addresses(8))
    pages = Counter(map(members.owner, NAMES))
    assert set(pages) == set(addresses(8))
    assert max(pages.values()) < 1.3 * len(NAMES) / 8


def test_member_that_goes_moves_only_its_own_pages():
    before = CacheMembers(addresses(5))
    after = CacheMembers(addresses(4))
    moved = [name for name in NAMES if before.owner(name) != after.owner(name)]
    assert moved == [name for name in NAMES if before.owner(name) == addresses(5)[-1]]


def test_pages_stay_on_their_hosts_if_the_ports_change():
    before = CacheMembers(addresses(5))
    after = CacheMembers(tuple(address.replace("7070", f"4{n}17") for n, address in enumerate(addresses(5))))
    hosts = [split_address(before.owner(name))[0] for name in NAMES]
    assert [split_address(after.owner(name))[0] for name in NAMES] == hosts


def test_members_of_one_host_have_pages_each():
    members = ("10.0.0.1:7070", "10.0.0.1:7071", "10.0.0.2:7070")
    pages = Counter(map(CacheMembers(members).owner, NAMES))
    assert min(pages[member] for member in members) > 0.8 * len(NAMES) / 3


@pytest.mark.parametrize(
    ("peers", "accepted"),
    [
        (["a:1", "b:2"], ("a:1", "b:2")),
        ("a:1,b:2", ("a:1", "b:2")),
        ("slurm", ("slurm",)),
        (["slurm"], ("slurm",)),
        ("dns:cache.svc:7070", ("dns:cache.svc:7070",)),
        (["[::1]:7070"], ("[::1]:7070",)),
    ],
)
def test_peers_are_parsed(peers, accepted):
    assert parse_peers(peers) == accepted


@pytest.mark.parametrize(
    "peers", ["", [], ["a"], ["a:0"], ["a:70000"], ["a:1", "a:1"], "dns:a", 7, [7], ["a b:1"], ["a:1"] * 5000]
)
def test_wrong_peers_are_refused(peers):
    with pytest.raises(InvalidRuntime):
        parse_peers(peers)


def test_addresses_behind_a_name_are_asked_for_again_after_half_a_minute():
    now_s = [0.0]
    answers = [["10.0.0.1:7070"], ["10.0.0.1:7070", "10.0.0.2:7070"]]
    members = CacheMembers(
        ("dns:cache:7070",),
        resolve=lambda name, port: answers[0],
        clock=lambda: now_s[0],
        start=lambda work: work(),
    )
    assert members.all() == ("10.0.0.1:7070",)
    answers.pop(0)
    now_s[0] = 29.0
    assert members.all() == ("10.0.0.1:7070",)
    now_s[0] = 31.0
    assert members.all() == ("10.0.0.1:7070", "10.0.0.2:7070")


def test_name_that_does_not_resolve_keeps_its_last_addresses():
    now_s = [0.0]
    fails = [False]

    def resolve(name, port):
        if fails[0]:
            raise OSError("no such name")
        return ["10.0.0.1:7070"]

    members = CacheMembers(
        ("dns:cache:7070",), resolve=resolve, clock=lambda: now_s[0], start=lambda work: work()
    )
    assert members.owner("0" * 40) == "10.0.0.1:7070"
    fails[0] = True
    now_s[0] = 60.0
    assert members.owner("0" * 40) == "10.0.0.1:7070"


def test_resolver_that_hangs_stops_no_read():
    now_s = [0.0]
    may_answer = threading.Event()
    answered = threading.Event()

    def resolve(name, port):
        if now_s[0] > 0:
            assert may_answer.wait(PATIENCE_S)
            answered.set()
        return [f"10.0.0.{1 + int(now_s[0] > 0)}:7070"]

    members = CacheMembers(("dns:cache:7070",), resolve=resolve, clock=lambda: now_s[0])
    assert members.all() == ("10.0.0.1:7070",)
    now_s[0] = 60.0
    assert members.all() == ("10.0.0.1:7070",)  # although the resolver does not answer
    may_answer.set()
    assert answered.wait(PATIENCE_S)


def test_name_without_an_address_has_no_owner():
    assert CacheMembers(("dns:nowhere:7070",), resolve=lambda name, port: []).owner("0" * 40) is None


def test_nodes_of_a_slurm_job_share_a_port():
    job = {"SLURM_JOB_NODELIST": "n1,n2", "SLURM_JOB_ID": "41"}
    assert slurm_addresses(job) == ("n1:7111", "n2:7111")


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_NODELIST": "n1; rm", "SLURM_JOB_ID": "4"}])
def test_slurm_outside_a_job_is_refused(environ):
    with pytest.raises(InvalidRuntime):
        slurm_addresses(environ)


def test_own_addresses_are_local():
    assert is_local("127.0.0.1:7070")
    assert is_local("localhost:7070")
    assert not is_local("192.0.2.1:7070")


def test_address_is_split():
    assert split_address("[fe80::1]:80") == ("fe80::1", 80)
    assert split_address("host-1.x:7070") == ("host-1.x", 7070)
