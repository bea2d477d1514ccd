"""One server for each folder, whoever starts it."""

import os
from concurrent.futures import ThreadPoolExecutor

from loader.cache.pages import make_place
from loader.cache.peers import lifetime
from loader.cache.peers.lifetime import (
    ServerRecord,
    folder_lock,
    live_server,
    start_server,
    write_record,
)

ADDRESS = "127.0.0.1:0"
ARGUMENTS = ["--limit-bytes", str(2**26)]
RANKS = 4


def test_ranks_that_start_a_server_at_once_get_the_same_one(tmp_path):
    folder = str(tmp_path / "cache")
    make_place(folder)

    def start(_):
        return start_server(folder, ADDRESS, ADDRESS, ARGUMENTS)

    with ThreadPoolExecutor(RANKS) as pool:
        records = set(pool.map(start, range(RANKS)))
    (record,) = records
    for process in lifetime._started:
        process.kill()
        process.wait(30)
    assert record.pid in {process.pid for process in lifetime._started}
    lifetime._started.clear()


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
