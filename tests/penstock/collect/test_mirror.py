"""A mirror's collector deletes what its primary's deleted, and what nobody reads there."""

from pathlib import Path

import pytest

import loader
from loader.storage import open_store
from penstock.collect import Options, collect
from penstock.collect.swept import read_swept
from penstock.migrate.pace import Pace
from penstock.migrate.run import migrate
from penstock.verify import verify

NOW = Options(name="c", grace_s=0)


def files(root: loader.Root, folder: str = "data") -> set[str]:
    top = Path(root.url)
    return {str(one.relative_to(top)) for one in (top / folder).rglob("*") if one.is_file()}


@pytest.fixture
def primary(tmp_path):
    """Three versions: samples, some of them left out, and more samples."""
    root = loader.Root(str(tmp_path / "primary"))
    for first in (0, 20):
        with root.write("d", part_samples=5) as writer:
            for i in range(first, first + 20):
                writer.add(f"k{i:04d}", {"cls": i})
        if not first:
            root.exclude("d@1", [f"k{i:04d}" for i in range(3)], reason="withdrawn")
    root.close()  # gives its leases back
    return loader.Root(root.url)


@pytest.fixture
def mirror(primary, tmp_path):
    target = open_store(str(tmp_path / "mirror"))
    migrate(primary, target, Pace(None, None))
    return loader.Root(target.url)


def brought_up_to_date(primary, mirror):
    migrate(primary, mirror.store, Pace(None, None))
    return loader.Root(mirror.url)


def test_nothing_goes_that_the_primary_has(primary, mirror):
    primary.retire("d@1", reason="old")
    mirror = brought_up_to_date(primary, mirror)
    before = files(mirror)
    (Path(mirror.url) / "data" / "mine.txt").write_text("a foreign file")
    assert collect(mirror, NOW, apply=True).swept.objects == 0
    assert files(mirror) == {*before, "data/mine.txt"}


def test_what_the_primary_swept_goes_and_the_rest_verifies(primary, mirror):
    primary.retire("d@1", reason="old")
    here = collect(primary, NOW, apply=True).swept
    assert here.objects > 0
    assert collect(mirror, NOW, apply=True).swept.objects == 0, "the record was not copied yet"
    mirror = brought_up_to_date(primary, mirror)
    gone = {key for table in read_swept(primary.store) for key in table["key"].to_pylist()}
    there = files(mirror) & gone
    done = collect(mirror, NOW, apply=True).swept
    assert done.objects == len(there) > 0
    assert files(mirror) == files(primary)
    assert done.records == []
    for name in ("d@2", "d@3"):
        assert not verify(mirror, name, full=True).problems


def test_a_reader_of_the_mirror_keeps_what_it_reads(primary, mirror):
    version = mirror.open("d@1")
    wanted = files(mirror)
    primary.retire("d@1", reason="old")
    collect(primary, NOW, apply=True)
    later = brought_up_to_date(primary, mirror)
    assert collect(later, NOW, apply=True).swept.objects == 0
    assert files(later) >= wanted
    del version
    mirror.close()
    gone = {key for table in read_swept(primary.store) for key in table["key"].to_pylist()}
    assert collect(later, NOW, apply=True).swept.objects == len(wanted & gone) > 0
