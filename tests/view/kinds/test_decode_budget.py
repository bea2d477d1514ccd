"""Bytes that all threads of a viewer decode at once."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock

import pytest

from penstock.view.kinds.stored_bytes import DecodeBudget

EIGHT_AT_ONCE = """
import io
from concurrent.futures import ThreadPoolExecutor
from PIL import Image
from penstock.view.kinds import find_kind, stored_bytes
from penstock.view.kinds.kind import Facts
stored_bytes.BUDGET._limit = 128 * 2**20
facts = Facts(field="webp")
def webp(side):
    file = io.BytesIO()
    Image.new("RGB", (side, side), (1, 2, 3)).save(file, "WEBP", lossless=True)
    return file.getvalue()
def shown(data):
    return find_kind(data, facts).thumbnail(data, facts)
small, large = webp(16), webp(2048)
assert len(large) < 1000 and shown(small) is not None
def peak_mib():
    status = open("/proc/self/status").read()  # getrusage counts the parent's memory as well
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024
before = peak_mib()
with ThreadPoolExecutor(8) as threads:
    assert all(threads.map(shown, [large] * 8))
print(peak_mib() - before)
"""


def test_eight_pictures_of_a_few_bytes_are_decoded_within_the_budget():
    """Each takes 90 MiB to decode, of 200 bytes: together they took 600 MiB."""
    command = [sys.executable, "-c", EIGHT_AT_ONCE]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert int(done.stdout) < 250


def test_budget_is_never_exceeded_and_all_come_to_their_turn():
    budget, lock = DecodeBudget(100), Lock()
    used = [0, 0]

    def take(n):
        with budget.reserve(n):
            with lock:
                used[0] += min(n, 100)
                used[1] = max(used)
            Event().wait(0.001)
            with lock:
                used[0] -= min(n, 100)
        return n

    wanted = [10, 90, 100, 500, 1, 60, 0] * 6
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(take, wanted)) == wanted
    assert 60 <= used[1] <= 100


def test_thread_that_holds_a_reservation_does_not_wait_for_itself():
    budget = DecodeBudget(100)
    with budget.reserve(80), budget.reserve(60), budget.reserve(100):
        assert budget._used == 100
    assert budget._used == 0


def test_reservation_ends_with_an_error():
    budget = DecodeBudget(100)
    with pytest.raises(ValueError, match="damaged"), budget.reserve(100):
        raise ValueError("damaged")
    with budget.reserve(100):
        assert budget._used == 100
