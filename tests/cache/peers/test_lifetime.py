"""One server for each folder, whoever starts it."""

import os
from concurrent.futures import ThreadPoolExecutor
from socket import create_server

from loader.cache.addresses import split_address
from loader.cache.pages import make_place
from loader.cache.peers import lifetime
from loader.cache.peers.lifetime import (
    ServerRecord,
    folder_lock,
    live_server,
    start_server,
    write_record,
)
from loader.cache.peers.training_nodes import join_nodes
from loader.cache.spec import NodeCache
from tests.servers.patience import PATIENCE_S

ADDRESS = "127.0.0.1:0"
ARGUMENTS = ["--limit-bytes", str(2**26)]
RANKS = 4


def kill_started():
    """Kill the servers that this process started; return their numbers."""
    numbers = set()
    for process in lifetime._started:
        process.kill()
        process.wait(PATIENCE_S)
        numbers.add(process.pid)
    lifetime._started.clear()
    return numbers


def test_ranks_that_start_a_server_at_once_get_the_same_one(tmp_path):
    folder = str(tmp_path / "cache")
    make_place(folder)

    def start(_):
        return start_server(folder, ADDRESS, ADDRESS, ARGUMENTS)

    with ThreadPoolExecutor(RANKS) as pool:
        records = set(pool.map(start, range(RANKS)))
    (record,) = records
    assert record.pid in kill_started()


def test_server_that_a_restarted_run_starts_has_its_former_port(tmp_path):
    """Nodes of one host are told apart by their ports: another port would be asked for other pages."""
    spec = NodeCache(path=tmp_path / "cache", limit_bytes=2**26)
    (first,) = join_nodes(spec, 0, lambda value: [value]).peers
    kill_started()
    (second,) = join_nodes(spec, 0, lambda value: [value]).peers
    kill_started()
    assert second == first
    with create_server(split_address(first)):  # somebody else has the port
        (third,) = join_nodes(spec, 0, lambda value: [value]).peers
    kill_started()
    assert third != first


def test_record_of_a_killed_server_is_not_taken_for_the_next_ones(tmp_path):
    folder = str(tmp_path / "cache")
    make_place(folder)
    write_record(folder, ServerRecord("127.0.0.1:1", 1, 0.0))
    assert live_server(folder) is None
    with folder_lock(folder):
        assert live_server(folder) is None
        own = ServerRecord("127.0.0.1:2", os.getpid(), 1.0)
        write_record(folder, own)
        assert live_server(folder) == own
    assert live_server(folder) is None
