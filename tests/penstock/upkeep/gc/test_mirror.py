"""A mirror's collector deletes what its primary's deleted, and what nobody reads there."""

from pathlib import Path

import pytest

import loader
from loader.errors import Conflict
from loader.storage import open_store
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.gc import Moment, Options, Policy, collect, plan, retire_by_policy
from penstock.upkeep.gc.deleted_record import read_swept
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.migrate.promote import promote, promote_alone
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal

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


def update_mirror(primary, mirror):
    migrate(primary, mirror.store, Pace(None, None))
    return loader.Root(mirror.url)


def test_nothing_goes_that_the_primary_has(primary, mirror):
    primary.retire("d@1", reason="old")
    mirror = update_mirror(primary, mirror)
    before = files(mirror)
    (Path(mirror.url) / "data" / "mine.txt").write_text("a foreign file")
    assert collect(mirror, NOW, apply=True).swept.objects == 0
    assert files(mirror) == {*before, "data/mine.txt"}


def test_what_the_primary_swept_goes_and_the_rest_verifies(primary, mirror):
    primary.retire("d@1", reason="old")
    here = collect(primary, NOW, apply=True).swept
    assert here.objects > 0
    assert collect(mirror, NOW, apply=True).swept.objects == 0, "the record was not copied yet"
    mirror = update_mirror(primary, mirror)
    gone = {key for table in read_swept(primary.store) for key in table["key"].to_pylist()}
    there = files(mirror) & gone
    done = collect(mirror, NOW, apply=True).swept
    assert done.objects == len(there) > 0
    assert files(mirror) == files(primary)
    assert done.records == []
    for name in ("d@2", "d@3"):
        assert not verify(mirror, name, full=True).problems


def abort_transaction(root):
    """Bytes that nobody needs, of a transaction that was given up: no mirror gets them."""
    txn = root.begin("d")
    loader.write_part(root, txn, [("never", {"cls": 0})])
    root.abort(txn, "no")
    root.close()


def test_what_either_of_two_primaries_swept_goes(primary, mirror, tmp_path):
    """The first swept behind the last copy, so that both made a first record; another mirror has that of the first."""
    abort_transaction(primary)
    third = open_store(str(tmp_path / "third"))
    migrate(primary, third, Pace(None, None))
    second = update_mirror(primary, mirror)
    assert collect(primary, NOW, apply=True).swept.objects > 0
    migrate(primary, third, Pace(None, None))  # copies the record
    assert promote_alone(second.store).promoted
    second = loader.Root(second.url)
    second.retire("d@1", reason="old")
    assert collect(second, NOW, apply=True).swept.objects > 0
    for place in (primary.url, third.url):
        report = migrate(second, open_store(place), Pace(None, None))
        assert report.failures == {}
        former = loader.Root(place)
        assert former.mirror_of == second.url
        assert collect(former, NOW, apply=True).swept.objects > 0
        assert files(former) == files(second)
        assert not verify(former, "d@3", full=True).problems


def test_record_of_an_earlier_release_counts(primary, mirror):
    primary.retire("d@1", reason="old")
    here = collect(primary, NOW, apply=True).swept
    (record,) = here.records
    (Path(primary.url) / record).rename(Path(primary.url) / "swept" / "000000000001.parquet")
    abort_transaction(primary)
    (later,) = collect(primary, NOW, apply=True).swept.records
    assert later.startswith("swept/000000000002-")
    mirror = update_mirror(primary, mirror)
    assert collect(mirror, NOW, apply=True).swept.objects > 0
    assert files(mirror) == files(primary)


def test_root_that_is_moved_while_it_is_swept(primary, mirror, properties, monkeypatch):
    """What comes behind the move is the new primary's to decide on."""
    monkeypatch.setattr(plan, "ROWS", 2)
    primary.retire("d@1", reason="old")
    before = files(primary)
    sweeping, store = loader.Root(primary.url), primary.store
    moves = properties.meanwhile(
        store, "delete_many", lambda: promote(primary, mirror.store, Pace(None, None))
    )
    sweeping._use(moves)
    with refusal(Conflict, what="former primary", where=primary.url, accepted=mirror.url) as refused:
        collect(sweeping, NOW, apply=True)
    assert "collected as a mirror" in refused.value.__notes__[0]
    assert len(before) - len(files(primary)) == 2
    later = loader.Root(mirror.url)
    assert collect(later, NOW, apply=True).swept.objects > 0
    migrate(later, store, Pace(None, None))
    assert collect(loader.Root(primary.url), NOW, apply=True).swept.objects > 0
    gone = {key for table in read_swept(later.store) for key in table["key"].to_pylist()}
    assert not files(primary) & gone
    assert files(later) < files(primary), "what it had alone is on no record"


def test_no_transaction_is_aborted_in_a_mirror(primary, mirror):
    """No sign of life of its writer is ever copied there."""
    txn = primary.begin("d")
    mirror = update_mirror(primary, mirror)
    for hour, apply in ((0, True), (80, False), (160, True)):
        at = Moment(at_us=0, run="one", run_us=hour * 3_600_000_000)
        found = collect(mirror, NOW, apply=apply, at=at)
        assert found.silent == []
        assert txn not in found.to_text()
    assert mirror.state.txns[txn].status == "open"


def test_reader_of_the_mirror_keeps_what_it_reads(primary, mirror):
    version = mirror.open("d@1")
    wanted = files(mirror)
    primary.retire("d@1", reason="old")
    collect(primary, NOW, apply=True)
    later = update_mirror(primary, mirror)
    assert collect(later, NOW, apply=True).swept.objects == 0
    assert files(later) >= wanted
    del version
    mirror.close()
    gone = {key for table in read_swept(primary.store) for key in table["key"].to_pylist()}
    assert collect(later, NOW, apply=True).swept.objects == len(wanted & gone) > 0


def test_held_version_that_was_retired_before_the_mirror_was_made_ends_no_look(primary, tmp_path):
    """It was never copied, neither to the mirror nor to what the root is moved to."""
    primary.hold("d@1", by="legal", why="case")
    primary.retire("d@1", reason="old")
    target = open_store(str(tmp_path / "mirror"))
    migrate(primary, target, Pace(None, None))
    record = primary.record("d@1", retired=True)
    assert record.manifest not in files(loader.Root(target.url))
    assert collect(loader.Root(target.url), NOW, apply=True).swept.objects == 0
    promote(primary, target, Pace(None, None))
    later = loader.Root(target.url)
    collect(later, NOW, apply=True)
    for name in ("d@2", "d@3"):
        assert not verify(later, name, full=True).problems


def test_collector_of_a_root_with_mirrors_reads_only_the_primary(properties, tmp_path):
    """The mirror is nearer, has notes of a collector of that name, and knows of no retirement and no lease."""
    primary = properties.fresh()
    properties.two_versions(primary)
    third = properties.write(primary, "c")
    mirror = loader.Root(tmp_path / "mirror")
    migrate(primary, mirror.store, Pace(None, None))
    collect(mirror, Options(name="c"), now_us=0)
    before = files(mirror, "collect")
    both = loader.Root(primary.url, mirrors=[mirror.url])
    assert both.alone.store is both.store.primary
    assert primary.alone is primary
    reader = properties.again(primary)
    reader.open("d@2")
    assert retire_by_policy(both, "d", Policy(last=1), now_us=0) == []
    reader.close()
    primary.retire("d@2", reason="old")
    swept = [properties.look(both, hour).swept.objects for hour in (80, 152)]
    assert (swept[0], swept[1] > 0) == (0, True)
    assert properties.there(primary) == properties.live_keys(primary, third)
    assert files(mirror, "collect") == before
