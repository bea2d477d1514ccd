"""Properties of a collector: functions that raise AssertionError. Hours are those of the collector's clock."""

import itertools

import numpy as np

import loader
from loader.dataset.leases import Lease
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.tables.manifest import references
from loader.dataset.versions.version import open_record
from loader.errors import Corrupt, Fenced, Forbidden, ObjectNotFound
from penstock.upkeep.gc import Moment, Options, collect
from penstock.upkeep.gc.deleted_record import read_swept

HOUR_US = 3_600_000_000
_numbers = itertools.count()


def fresh():
    """An empty root in memory."""
    return loader.Root(f"memory://collect-{next(_numbers)}")


def again(root):
    """The same root in another process's hands."""
    return loader.Root(root.url)


def write(root, name, n=3, dataset="d"):
    with root.write(dataset, part_samples=2) as writer:
        for i in range(n):
            writer.add(f"{name}{i}", {"cls": i}, metadata={"w": i})
    return root.record(f"{dataset}@{writer.version.number}")


def two_versions(root):
    """d@1, and d@2 that holds none of its bytes: what is d@1's alone is all of it."""
    one = write(root, "a")
    root.retire("d@1", reason="old")
    two = write(root, "b")
    root.close()
    return one, two


def look(root, hours, *, wall=0, run="one", **options):
    """What a collector does at this hour, deleting what is due. wall: hours that its wall clock is off; run: the name
    of its machine's run."""
    apply = options.pop("apply", True)
    at_us = round(hours * HOUR_US)
    at = Moment(at_us=at_us + round(wall * HOUR_US), run=run, run_us=at_us)
    return collect(root, Options(**{"name": "c", **options}), apply=apply, at=at)


def is_whole(root, record):
    """Whether every object of a version is there, and every field has its checksum."""
    try:
        version = open_record(root.store, record)
        for one in references(root.store, version.manifest):
            root.store.head(one.path)
        for group in version.manifest["groups"].values():
            view = version.select(*group["field_nbytes"], where_present=True)
            at = view.version_ordinals(np.arange(len(view), dtype=np.int64))
            read_fields(root.store, version.address(at, sorted(group["field_nbytes"])))
    except ObjectNotFound:
        return False
    return True


def is_gone(root, record):
    """Whether nothing of what only this version's transaction uploaded is left."""
    return not list(root.store.list(f"data/{record.txn}/"))


def needed(root, *records):
    """The keys under data/ that these versions are made of."""
    keys = set()
    for record in records:
        manifest = open_record(root.store, record).manifest
        keys |= {record.manifest, *(one.path for one in references(root.store, manifest))}
    return keys


def there(root, folder="data/"):
    return {info.key for info in root.store.list(folder)}


def stored(root):
    """Bytes of all objects but the collector's own."""
    own = ("collect/", "swept/")
    return sum(info.nbytes for info in root.store.list("") if not info.key.startswith(own))


def raises(error, call):
    """Whether a call raises this error."""
    try:
        call()
    except error:
        return True
    return False


# what goes


def a_retired_version_goes_after_the_grace_and_not_before():
    root = fresh()
    one, two = two_versions(root)
    for hour in (0, 10, 71.9):
        look(root, hour)
        assert is_whole(root, one)
        assert is_whole(root, two)
    look(root, 72)
    assert is_gone(root, one)
    assert is_whole(root, two)
    assert there(root) == needed(root, two)


def what_versions_share_stays():
    root = fresh()
    one = write(root, "a")
    root.add_group("d", "g", {"t.txt": lambda sample: "t"})
    root.exclude("d", ["a1"], reason="blurred")
    three = root.record("d@3")
    root.retire("d@1", reason="old")
    root.retire("d@2", reason="old")
    root.close()
    for hour in (0, 80):
        look(root, hour)
    assert is_whole(root, three)
    assert there(root) == needed(root, three)
    assert not is_whole(root, one)


def attempts_that_lost_and_aborted_transactions_go():
    root = fresh()
    txn = root.begin("d")
    lost, won = (loader.write_part(root, txn, [("a", {"cls": 1})], name="0") for _ in range(2))
    root.publish("d", [won])
    given_up = root.begin("d")
    loader.write_part(root, given_up, [("b", {"cls": 1})])
    root.abort(given_up, "no")
    root.close()
    for hour in (0, 80):
        look(root, hour)
    assert there(root) == needed(root, root.record("d@1"))
    assert lost.shards[0].path not in there(root)


def what_goes_with_a_version_goes():
    root = fresh()
    one, two = two_versions(root)
    for record in (one, two):
        root.store.put(f"cards/d/{record.number:06d}-{record.id}/card.json", b"{}")
    root.store.put("heartbeats/probe-0", b"")
    left = Lease(root.store)
    left.add(two.id)
    for hour in (0, 80, 160):
        look(root, hour)
    assert there(root, "cards/") == {f"cards/d/000002-{two.id}/card.json"}
    assert there(root, "heartbeats/") == set()
    assert there(root, "leases/") == set()
    left.close()


# what stays


def retired_while_read():
    """(a root, its first version, which is retired, and another root that has it open)."""
    root = fresh()
    one = write(root, "a")
    reader = again(root)
    reader.open("d@1")
    write(root, "b")
    root.retire("d@1", reason="old")
    root.close()
    return root, one, reader


def a_leased_version_stays():
    root, one, reader = retired_while_read()
    for hour in range(0, 400, 50):
        look(root, hour)
        reader.renew_leases()
        assert is_whole(root, one)
    reader.close()
    for hour in (400, 480):
        look(root, hour)
    assert not is_whole(root, one)


def a_lease_that_does_not_move_keeps_nothing():
    root, one, reader = retired_while_read()
    for hour in (0, 71, 72, 143):
        look(root, hour)
        assert is_whole(root, one)
    look(root, 144)
    assert not is_whole(root, one)
    reader.close()


def a_lease_that_moves_again_before_the_sweep_keeps_its_version():
    """It was taken for dead when the plan was made, and is seen alive at the last look."""
    root, one, reader = retired_while_read()
    for hour in (0, 72):
        look(root, hour)
    root._use(Meanwhile(root.store, "put_file", reader.renew_leases))
    found = look(root, 144)
    assert is_whole(root, one)
    assert found.swept.spared > 0
    reader.close()


def a_lease_that_listings_lack_keeps_its_version():
    """Seen once it is asked for: at looks without a grace, and at the last look."""
    root, one, reader = retired_while_read()
    look(root, 0)
    plain = root.store
    for hour in (1, 2):
        root._use(Lacking(plain, "leases/"))
        reader.renew_leases()
        look(root, hour, grace_s=0)
        assert is_whole(root, one)
        assert there(again(root), "leases/")
    root._use(plain)
    reader.close()
    look(root, 3, grace_s=0)
    assert not is_whole(root, one)


def a_held_version_stays():
    root = fresh()
    one = write(root, "a")
    root.hold("d@1", by="alice", why="audit")
    write(root, "b")
    root.retire("d@1", reason="old")
    root.close()
    for hour in (0, 80, 160):
        look(root, hour)
        assert is_whole(root, one)
    root.release("d@1", by="alice")
    for hour in (170, 250):
        look(root, hour)
    assert not is_whole(root, one)


def a_named_version_stays():
    for name in ("tag", "alias"):
        root = fresh()
        one = write(root, "a")
        getattr(root, name)("d@1", "paper")
        write(root, "b")
        root.retire("d@1", reason="old")
        root.close()
        for hour in (0, 80, 160):
            look(root, hour)
        assert is_whole(root, one)


def the_parent_of_an_open_transaction_stays():
    root = fresh()
    one = write(root, "a")
    txn = root.begin("d", parent="d@1")
    root.retire("d@1", reason="old")
    write(root, "b")
    root.close()
    beat = root.heartbeat(txn)
    for hour in range(0, 300, 60):
        beat.beat()
        look(root, hour)
        assert is_whole(root, one)
    root.abort(txn, "done")
    for hour in (300, 380):
        look(root, hour)
    assert is_gone(root, one)


def an_open_transaction_that_moves_loses_nothing():
    root = fresh()
    write(root, "a")
    txn = root.begin("d")
    part = loader.write_part(root, txn, [("b", {"cls": 1})])
    beat = root.heartbeat(txn)
    for hour in range(0, 300, 60):
        beat.beat()
        look(root, hour)
    version = root.publish("d", [part])
    assert is_whole(root, root.record(version.name))
    root.close()


def a_silent_transaction_is_aborted_and_can_commit_nothing():
    """Its writer was asleep: it is fenced, and what it uploaded stays for the grace."""
    root = fresh()
    write(root, "a")
    txn = root.begin("d")
    part = loader.write_part(root, txn, [("b", {"cls": 1})])
    beat = root.heartbeat(txn)
    beat.beat()
    for hour in (0, 71.9):
        look(root, hour)
        assert root.state.txns[txn].status == "open"
    look(root, 72, apply=False)
    assert root.state.txns[txn].status == "open"
    look(root, 72)
    assert root.state.txns[txn].status == "aborted"
    assert raises(Fenced, lambda: root.publish("d", [part]))
    look(root, 143)
    assert part.shards[0].path in there(root)
    look(root, 144)
    assert part.shards[0].path not in there(root)
    root.close()


def what_is_not_ours_stays():
    root = fresh()
    one, _ = two_versions(root)
    foreign = {
        "data/notes.txt",
        "data/other/attempt/x.tar",
        f"data/{one.txn}/attempt/README",
        f"data/{one.txn}/loose.tar",
        f"data/{one.txn}/a/b/c.tar",
        "cards/d/readme.md",
        "heartbeats/somebody.json",
    }
    for key in foreign:
        root.store.put(key, b"mine")
    for hour in (0, 80, 160):
        found = look(root, hour)
    assert foreign <= {info.key for info in root.store.list("")}
    assert set(found.tally.foreign) == foreign
    assert found.tally.sums["", "foreign"] == (len(foreign), 4 * len(foreign))


def a_version_that_cannot_be_read_stops_the_collector():
    root = fresh()
    one, two = two_versions(root)
    root.store.delete_many([two.manifest])
    look_at = [lambda hour=hour: look(root, hour) for hour in (0, 80)]
    assert all(raises(ObjectNotFound, one_look) for one_look in look_at)
    assert is_whole(root, one)


CLAIMS = {
    "a hold by 'legal'": lambda root: root.hold("d@1", by="legal", why="audit"),
    "tag 'paper'": lambda root: root.tag("d@1", "paper"),
    "alias 'best'": lambda root: root.alias("d@1", "best"),
    "as its parent": lambda root: root.heartbeat(root.begin("d", parent="d@1")).beat(),
}


def claimed_and_retired(claim):
    """(a root, its first version, which is retired and claimed)."""
    root = fresh()
    one = write(root, "a")
    claim(root)
    root.retire("d@1", reason="old")
    write(root, "b")
    root.close()
    return root, one


def what_the_log_keeps_is_not_deleted_because_it_cannot_be_read():
    """Nor anything else, until the file is back."""
    for who, claim in CLAIMS.items():
        root, one = claimed_and_retired(claim)
        (shards,) = [key for key in needed(root, one) if key.endswith("/shards.parquet")]
        for key, damaged in itertools.product((one.manifest, shards), (False, True)):
            whole, before = root.store.get(key).data, there(root)
            root.store.delete_many([key])
            if damaged:
                root.store.put(key, whole[:5] + bytes([whole[5] ^ 1]) + whole[6:])
            for hour in (0, 80):
                try:
                    look(root, hour, silence_s=1e9)
                except (ObjectNotFound, Corrupt) as error:
                    (told,) = error.__notes__
                    assert told.startswith("d@1 is retired and kept by ")
                    assert who in told
                else:
                    raise AssertionError(f"{who}, {key}: the look goes on")
            root.store.put(key, whole)
            assert there(root) == before
        look(root, 90, silence_s=1e9)
        assert is_whole(root, one)


def what_a_collector_may_have_taken_ends_no_look():
    """The files of a version that a lease alone keeps, and of one that was given up and is on record."""
    root, one, reader = retired_while_read()
    root.store.delete_many([one.manifest])
    look(root, 0)
    reader.close()
    root, one = claimed_and_retired(CLAIMS["tag 'paper'"])
    kept = needed(root, root.record("d@2"))
    root.store.delete_many([one.manifest])
    for hour in (0, 80):
        look(root, hour, condemned=[one.id])
    assert there(root) == kept
    root, one = claimed_and_retired(CLAIMS["tag 'paper'"])
    for hour in (0, 80):
        look(root, hour, condemned=[one.id])
    assert is_gone(root, one)
    look(root, 81)


# how it is done


def a_dry_run_changes_nothing():
    root = fresh()
    two_versions(root)
    before = {info.key: info.etag for info in root.store.list("")}
    for hour in (0, 80):
        found = look(root, hour, apply=False)
    after = {info.key: info.etag for info in root.store.list("") if not info.key.startswith("collect/")}
    assert after == before
    assert found.swept.objects > 0
    assert found.swept.objects == sum(n for n, _ in found.due.values())


def no_more_than_the_caps_goes():
    root = fresh()
    one, two = two_versions(root)
    look(root, 0)
    n = len(there(root))
    found = look(root, 80, max_objects=3)
    assert (found.swept.objects, found.swept.capped, len(there(root))) == (3, True, n - 3)
    before = stored(root)
    found = look(root, 80, max_bytes=20_000)
    assert found.swept.capped
    assert 0 < found.swept.nbytes == before - stored(root) <= 20_000
    assert not look(root, 80).swept.capped
    assert there(root) == needed(root, two)
    assert is_gone(root, one)


def an_object_above_the_cap_is_passed_over_and_named():
    """It is in nobody's way: whatever comes before or behind it goes, and it goes by a sweep that may delete it."""
    root = fresh()
    one, two = two_versions(root)
    large = {f"data/{one.txn}/0000000000000000/{name}.tar": 300_000 + n for n, name in enumerate("za")}
    for key, nbytes in large.items():
        root.store.put(key, bytes(nbytes))
    look(root, 0)
    for apply in (False, True):
        found = look(root, 80, max_bytes=250_000, apply=apply)
        assert (found.swept.capped, found.swept.n_too_large, found.swept.too_large) == (False, 2, large)
        assert found.swept.objects > 0
    assert there(root) == needed(root, two) | set(large)
    again = look(root, 80, max_bytes=250_000).swept
    assert (again.objects, again.capped, again.too_large) == (0, False, large)
    found = look(root, 80, max_bytes=300_001)
    assert (found.swept.capped, found.swept.too_large) == (True, {})
    found = look(root, 80, max_bytes=300_001)
    assert (found.swept.capped, found.swept.too_large) == (False, {})
    assert there(root) == needed(root, two)


def what_cannot_be_deleted_is_passed_over_and_named():
    """Whatever lies before and behind it goes, whether the store stops at it or deletes the others first; and what is
    tried again in vain is on record once."""
    for stops in (True, False):
        root = fresh()
        _, two = two_versions(root)
        look(root, 0)
        gone = sorted(there(root) - needed(root, two))
        held, plain = {gone[0], gone[2]}, root.store
        root._use(Holding(plain, held, stops=stops))
        found = look(root, 80, max_objects=1).swept
        assert (found.objects, found.capped, found.n_refused) == (1, True, 1)
        for hour in (80, 81, 82):
            found = look(root, hour).swept
            assert (found.n_refused, set(found.refused), found.capped) == (2, held, False)
            assert all("is held" in why for why in found.refused.values())
            assert sum(found.why.values()) == found.objects
            assert there(root) == needed(root, two) | held
        assert found.objects == 0
        assert len(list(read_swept(root.store))) == len(there(root, "swept/")) == 4
        root._use(plain)
        found = look(root, 83).swept
        assert (found.objects, found.n_refused, found.refused) == (2, 0, {})
        assert there(root) == needed(root, two)


def every_deletion_is_on_record_before_it_is_done():
    root = fresh()
    two_versions(root)
    look(root, 0)
    before = {info.key for info in root.store.list("")}
    recorded = []

    def delete(*_):
        recorded.extend(key for table in read_swept(root.store) for key in table["key"].to_pylist())

    root._use(Meanwhile(root.store, "delete_many", delete))
    look(root, 80, max_objects=4)
    assert len(recorded) == 4
    look(root, 80)
    deleted = before - {info.key for info in root.store.list("")}
    named = [key for table in read_swept(root.store) for key in table["key"].to_pylist()]
    assert deleted <= set(named)
    assert sorted(named) == sorted(set(named)), "each once, where nobody was killed"
    assert [table.num_rows for table in read_swept(root.store)] == [4, len(named) - 4], "in their order"


def each_clock_waits_for_its_own_grace():
    """Of two collectors whose clocks are years apart neither goes by what the other saw."""
    root = fresh()
    one, _ = two_versions(root)
    year = 366 * 24
    look(root, 0, name="a")
    look(root, year, name="b")
    look(root, 70, name="a")
    look(root, year + 70, name="b")
    assert is_whole(root, one)
    look(root, year + 73, name="b")
    look(root, 74, name="a")
    assert is_gone(root, one)


def a_clock_that_is_set_ends_no_grace():
    """While the machine runs its wall clock counts nothing, put forward or back."""
    root = fresh()
    one, _ = two_versions(root)
    year = 366 * 24
    for hour, wall in ((0, 0), (1, 100), (2, year), (3, -year), (71.9, 0)):
        look(root, hour, wall=wall)
        assert is_whole(root, one)
    look(root, 72, wall=700)
    assert is_gone(root, one)


def a_clock_that_jumps_between_two_runs_ends_no_grace():
    """Another machine, or this one started again: of what the wall clock says half a grace counts at once, and nothing
    where it was put back."""
    root = fresh()
    one, _ = two_versions(root)
    look(root, 0)
    look(root, 1, wall=366 * 24, run="two")
    look(root, 36.9, wall=366 * 24, run="two")
    assert is_whole(root, one)
    look(root, 38, run="three")  # put back: the grace begins again
    look(root, 109.9, run="three")
    assert is_whole(root, one)
    look(root, 110, run="three")
    assert is_gone(root, one)
    root = fresh()
    one, _ = two_versions(root)
    for day in range(3):
        look(root, 24 * day, run=str(day))
        assert is_whole(root, one)
    look(root, 72, run="3")  # a machine that is switched off every day
    assert is_gone(root, one)


def a_clock_that_is_set_aborts_nobody():
    """Between two looks that follow so soon that nobody's counter has moved."""
    for run, silence_s in (("one", 72 * 3600), ("two", 72 * 3600), ("one", 600), ("two", 600)):
        root, one, reader = retired_while_read()
        txn = root.begin("d")
        beat = root.heartbeat(txn)
        for number, jump in enumerate((73, 200, 744)):
            now = 10 * number
            beat.beat()
            reader.renew_leases()
            look(root, now, silence_s=silence_s, grace_s=0)
            found = look(root, now + 0.001, wall=jump, run=run, silence_s=silence_s, grace_s=0)
            assert not found.silent
            assert root.state.txns[txn].status == "open"
            assert is_whole(root, one)
            beat.beat()
            reader.renew_leases()
            look(root, now + 0.01, wall=jump, run=run, silence_s=silence_s, grace_s=0)
        reader.close()


def a_takedown_passes_names_and_leases_and_no_hold():
    root = fresh()
    one = write(root, "a")
    reader = again(root)
    reader.open("d@1")
    root.tag("d@1", "paper")
    root.hold("d@1", by="court", why="evidence")
    write(root, "b")
    look(root, 0, grace_s=0, condemned=[one.id])
    assert is_whole(root, one)  # not retired
    root.retire("d@1", reason="taken down")
    root.retire("d@2", reason="taken down")
    three = write(root, "c")
    root.close()
    look(root, 0, grace_s=0, condemned=[one.id])
    assert is_whole(root, one)
    root.release("d@1", by="court")
    found = look(root, 0, grace_s=0, condemned=[one.id])
    assert found.swept.objects
    assert there(root) == needed(root, three)
    reader.close()


def a_writer_may_be_called_probe():
    """Its heartbeat is none of what a probe left behind."""
    root = fresh()
    write(root, "a")
    txn = root.begin("d", txn="probe-7")
    root.store.put("heartbeats/probe-8/versioned.json", b"{}")
    beat = root.heartbeat(txn)
    for hour in range(0, 300, 60):
        beat.beat()
        look(root, hour)
        assert beat.key in there(root, "heartbeats/")
    assert root.state.txns[txn].status == "open"
    assert there(root, "heartbeats/probe-8/") == set()
    root.close()


def one_dataset_alone_is_swept():
    root = fresh()
    one, _ = two_versions(root)
    other = write(root, "x", dataset="e")
    root.retire("e@1", reason="old")
    txns = {dataset: root.begin(dataset) for dataset in "de"}
    root.close()
    look(root, 0)
    found = look(root, 80, dataset="d")
    assert is_gone(root, one)
    assert is_whole(root, other)
    assert found.silent == [txns["d"]]
    assert [root.state.txns[txns[dataset]].status for dataset in "de"] == ["aborted", "open"]
    assert look(root, 81).silent == [txns["e"]]


class Meanwhile:
    """A store; `does` is called before the first request of this verb, as if somebody else did it meanwhile."""

    def __init__(self, store, verb, does):
        self._store, self._verb, self._does = store, verb, does

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if name != self._verb:
            return found

        def call(*args, **kwargs):
            does, self._does = self._does, lambda *_: None
            does()
            return found(*args, **kwargs)

        return call


class Lacking:
    """A store whose listings of a folder show nothing, after so many that do."""

    def __init__(self, store, folder, after=0):
        self._store, self._folder, self._after = store, folder, after

    def __getattr__(self, name):
        return getattr(self._store, name)

    def list(self, prefix="", start_after=None):
        self._after -= prefix == self._folder
        there = self._store.list(prefix, start_after)
        return (one for one in there if self._after >= 0 or not one.key.startswith(self._folder))


class Holding:
    """A store that deletes some objects never: it `stops` at the first of them, as a disk, or deletes all others before
    it says so, as a bucket."""

    def __init__(self, store, held, *, stops):
        self._store, self._held, self._stops = store, held, stops

    def __getattr__(self, name):
        return getattr(self._store, name)

    def delete_many(self, keys):
        keys = list(keys)
        held = [key for key in keys if key in self._held]
        end = keys.index(held[0]) if held and self._stops else None
        self._store.delete_many(key for key in keys[:end] if key not in self._held)
        if held:
            raise Forbidden(f"cannot delete {held[0]}: it is held")


ALL = [
    a_retired_version_goes_after_the_grace_and_not_before,
    what_versions_share_stays,
    attempts_that_lost_and_aborted_transactions_go,
    what_goes_with_a_version_goes,
    a_leased_version_stays,
    a_lease_that_does_not_move_keeps_nothing,
    a_lease_that_moves_again_before_the_sweep_keeps_its_version,
    a_lease_that_listings_lack_keeps_its_version,
    a_held_version_stays,
    a_named_version_stays,
    the_parent_of_an_open_transaction_stays,
    an_open_transaction_that_moves_loses_nothing,
    a_silent_transaction_is_aborted_and_can_commit_nothing,
    what_is_not_ours_stays,
    a_version_that_cannot_be_read_stops_the_collector,
    what_the_log_keeps_is_not_deleted_because_it_cannot_be_read,
    what_a_collector_may_have_taken_ends_no_look,
    a_dry_run_changes_nothing,
    no_more_than_the_caps_goes,
    an_object_above_the_cap_is_passed_over_and_named,
    what_cannot_be_deleted_is_passed_over_and_named,
    every_deletion_is_on_record_before_it_is_done,
    each_clock_waits_for_its_own_grace,
    a_clock_that_is_set_ends_no_grace,
    a_clock_that_jumps_between_two_runs_ends_no_grace,
    a_clock_that_is_set_aborts_nobody,
    a_takedown_passes_names_and_leases_and_no_hold,
    a_writer_may_be_called_probe,
    one_dataset_alone_is_swept,
]
