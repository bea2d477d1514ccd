"""What a migration holds does not grow with what it copies: the peak of a process, at two sizes."""

import pytest

from tests.servers.processes import python

COPY = """
import resource, sys
from loader.storage import open_store
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.prefix_copy import migrate_prefix
import obstore, pyarrow.parquet
source, target, at_once = open_store(sys.argv[1]), open_store(sys.argv[2]), int(sys.argv[3])
resident = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
report = migrate_prefix(source, target, Pace(), at_once=at_once)
# (ru_maxrss begins with the peak of the process that started this one)
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")) * 1024
print(report.copied, report.nbytes, len(report.failures), max(0, peak - resident))
"""
MIB = 2**20


def holes(folder, count, nbytes):
    """Files without content: they cost no disk, and are read as zeros."""
    folder.mkdir(parents=True)
    for number in range(count):
        with (folder / f"{number:05d}").open("wb") as file:
            file.truncate(nbytes)


@pytest.fixture
def peak(tmp_path):
    """peak(name, at_once) -> bytes above the import at which a process peaked that copied a folder of tmp_path."""

    def peak(name, at_once):
        source, target = tmp_path / name, tmp_path / f"{name}-copied"
        done = python("-c", COPY, source, target, at_once, check=True)
        copied, nbytes, failed, above = map(int, done.stdout.split())
        files = [path for path in source.rglob("*") if path.is_file()]
        assert (copied, nbytes, failed) == (len(files), sum(path.stat().st_size for path in files), 0)
        return above

    return peak


def test_eight_times_as_much_takes_no_more(tmp_path, peak):
    above = []
    for times in (1, 8):
        holes(tmp_path / f"x{times}" / "large", 8 * times, 6 * MIB)
        holes(tmp_path / f"x{times}" / "small", 150 * times, 5000)
        above.append(peak(f"x{times}", 3))
    assert above[0] > 6 * MIB  # it was measured at all
    assert above[1] < above[0] + 16 * MIB


def test_many_large_objects_at_once_stay_below_300_mib(tmp_path, peak):
    holes(tmp_path / "large", 6, 64 * MIB)
    holes(tmp_path / "larger", 3, 80 * MIB)
    assert peak("large", 16) < 300 * MIB
    assert peak("larger", 16) < 300 * MIB
