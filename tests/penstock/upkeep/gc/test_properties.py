"""What must hold of a collector. Hours are those of its clock."""

import itertools

import loader
from loader.dataset.log.leases import Lease
from loader.errors import Corrupt, Fenced, ObjectNotFound
from penstock.upkeep.gc.deleted_record import read_swept
from tests.penstock.upkeep.gc.properties import (
    Holding,
    again,
    fresh,
    is_gone,
    is_whole,
    lacking,
    live_keys,
    look,
    meanwhile,
    raises,
    retired_with_reader,
    root_bytes,
    there,
    two_versions,
    write,
)

CLAIMS = {
    "a hold by 'legal'": lambda root: root.hold("d@1", by="legal", why="audit"),
    "tag 'paper'": lambda root: root.tag("d@1", "paper"),
    "alias 'best'": lambda root: root.alias("d@1", "best"),
    "as its parent": lambda root: root.heartbeat(root.begin("d", parent="d@1")).beat(),
}


def retired_with_claim(claim):
    """(a root, its first version, which is retired and claimed)."""
    root = fresh()
    one = write(root, "a")
    claim(root)
    root.retire("d@1", reason="old")
    write(root, "b")
    root.close()
    return root, one


def test_retired_version_goes_only_after_the_grace():
    root = fresh()
    one, two = two_versions(root)
    for hour in (0, 10, 71.9):
        look(root, hour)
        assert is_whole(root, one)
        assert is_whole(root, two)
    look(root, 72)
    assert is_gone(root, one)
    assert is_whole(root, two)
    assert there(root) == live_keys(root, two)


def test_what_versions_share_stays():
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
    assert there(root) == live_keys(root, three)
    assert not is_whole(root, one)


def test_attempts_that_lost_and_aborted_transactions_go():
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
    assert there(root) == live_keys(root, root.record("d@1"))
    assert lost.shards[0].path not in there(root)


def test_what_goes_with_a_version_goes():
    root = fresh()
    one, two = two_versions(root)
    for record in (one, two):
        root.store.put(f"cards/d/{record.number:06d}-{record.id}/card.json", b"{}")
        root.store.put(f"protected/{record.id}.parquet", b"")
    root.store.put("heartbeats/probe-0", b"")
    left = Lease(root.store)
    left.add(two.id)
    for hour in (0, 80, 160):
        look(root, hour)
    assert there(root, "cards/") == {f"cards/d/000002-{two.id}/card.json"}
    assert there(root, "protected/") == {f"protected/{two.id}.parquet"}
    assert there(root, "heartbeats/") == set()
    assert there(root, "leases/") == set()
    left.close()


def test_leased_version_stays():
    root, one, reader = retired_with_reader()
    for hour in range(0, 400, 50):
        look(root, hour)
        reader.renew_leases()
        assert is_whole(root, one)
    reader.close()
    for hour in (400, 480):
        look(root, hour)
    assert not is_whole(root, one)


def test_lease_that_does_not_move_keeps_nothing():
    root, one, reader = retired_with_reader()
    for hour in (0, 71, 72, 143):
        look(root, hour)
        assert is_whole(root, one)
    look(root, 144)
    assert not is_whole(root, one)
    reader.close()


def test_lease_that_moves_again_before_the_sweep_keeps_its_version():
    """It was taken for dead when the plan was made, and is seen alive at the last look."""
    root, one, reader = retired_with_reader()
    for hour in (0, 72):
        look(root, hour)
    root._use(meanwhile(root.store, "put_file", reader.renew_leases))
    found = look(root, 144)
    assert is_whole(root, one)
    assert found.swept.spared > 0
    reader.close()


def test_lease_that_listings_lack_keeps_its_version():
    """Seen once it is asked for: at looks without a grace, and at the last look."""
    root, one, reader = retired_with_reader()
    look(root, 0)
    plain = root.store
    for hour in (1, 2):
        root._use(lacking(plain, "leases/"))
        reader.renew_leases()
        look(root, hour, grace_s=0)
        assert is_whole(root, one)
        assert there(again(root), "leases/")
    root._use(plain)
    reader.close()
    look(root, 3, grace_s=0)
    assert not is_whole(root, one)


def test_held_version_stays():
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


def test_named_version_stays():
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


def test_parent_of_an_open_transaction_stays():
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


def test_open_transaction_that_moves_loses_nothing():
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


def test_silent_transaction_is_aborted_and_can_commit_nothing():
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


def test_what_is_not_ours_stays():
    root = fresh()
    one, _ = two_versions(root)
    foreign = {
        "data/notes.txt",
        "data/other/attempt/x.tar",
        f"data/{one.txn}/attempt/README",
        f"data/{one.txn}/loose.tar",
        f"data/{one.txn}/a/b/c.tar",
        "cards/d/readme.md",
        "protected/readme.md",
        "heartbeats/somebody.json",
    }
    for key in foreign:
        root.store.put(key, b"mine")
    for hour in (0, 80, 160):
        found = look(root, hour)
    assert foreign <= {info.key for info in root.store.list("")}
    assert set(found.tally.foreign) == foreign
    assert found.tally.sums["", "foreign"] == (len(foreign), 4 * len(foreign))


def test_version_that_cannot_be_read_stops_the_collector():
    root = fresh()
    one, two = two_versions(root)
    root.store.delete_many([two.manifest])
    look_at = [lambda hour=hour: look(root, hour) for hour in (0, 80)]
    assert all(raises(ObjectNotFound, one_look) for one_look in look_at)
    assert is_whole(root, one)


def test_what_the_log_keeps_is_not_deleted_because_it_cannot_be_read():
    """Nor anything else, until the file is back."""
    for who, claim in CLAIMS.items():
        root, one = retired_with_claim(claim)
        (shards,) = [key for key in live_keys(root, one) if key.endswith("/shards.parquet")]
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


def test_what_a_collector_may_have_taken_ends_no_look():
    """The files of a version that a lease alone keeps, and of one that was given up and is on record."""
    root, one, reader = retired_with_reader()
    root.store.delete_many([one.manifest])
    look(root, 0)
    reader.close()
    root, one = retired_with_claim(CLAIMS["tag 'paper'"])
    kept = live_keys(root, root.record("d@2"))
    root.store.delete_many([one.manifest])
    for hour in (0, 80):
        look(root, hour, condemned=[one.id])
    assert there(root) == kept
    root, one = retired_with_claim(CLAIMS["tag 'paper'"])
    for hour in (0, 80):
        look(root, hour, condemned=[one.id])
    assert is_gone(root, one)
    look(root, 81)


def test_dry_run_changes_nothing():
    root = fresh()
    two_versions(root)
    before = {info.key: info.etag for info in root.store.list("")}
    for hour in (0, 80):
        found = look(root, hour, apply=False)
    after = {info.key: info.etag for info in root.store.list("") if not info.key.startswith("collect/")}
    assert after == before
    assert found.swept.objects > 0
    assert found.swept.objects == sum(n for n, _ in found.due.values())


def test_no_more_than_the_caps_goes():
    root = fresh()
    one, two = two_versions(root)
    look(root, 0)
    n = len(there(root))
    found = look(root, 80, max_objects=3)
    assert (found.swept.objects, found.swept.capped, len(there(root))) == (3, True, n - 3)
    before = root_bytes(root)
    found = look(root, 80, max_bytes=20_000)
    assert found.swept.capped
    assert 0 < found.swept.nbytes == before - root_bytes(root) <= 20_000
    assert not look(root, 80).swept.capped
    assert there(root) == live_keys(root, two)
    assert is_gone(root, one)


def test_object_above_the_cap_is_passed_over_and_named():
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
    assert there(root) == live_keys(root, two) | set(large)
    again = look(root, 80, max_bytes=250_000).swept
    assert (again.objects, again.capped, again.too_large) == (0, False, large)
    found = look(root, 80, max_bytes=300_001)
    assert (found.swept.capped, found.swept.too_large) == (True, {})
    found = look(root, 80, max_bytes=300_001)
    assert (found.swept.capped, found.swept.too_large) == (False, {})
    assert there(root) == live_keys(root, two)


def test_what_cannot_be_deleted_is_passed_over_and_named():
    """Whatever lies before and behind it goes, whether the store stops at it or deletes the others first; and what is
    tried again in vain is on record once."""
    for stops in (True, False):
        root = fresh()
        _, two = two_versions(root)
        look(root, 0)
        gone = sorted(there(root) - live_keys(root, two))
        held, plain = {gone[0], gone[2]}, root.store
        root._use(Holding(plain, held, stops=stops))
        found = look(root, 80, max_objects=1).swept
        assert (found.objects, found.capped, found.n_refused) == (1, True, 1)
        for hour in (80, 81, 82):
            found = look(root, hour).swept
            assert (found.n_refused, set(found.refused), found.capped) == (2, held, False)
            assert all("is held" in why for why in found.refused.values())
            assert sum(found.why.values()) == found.objects
            assert there(root) == live_keys(root, two) | held
        assert found.objects == 0
        assert len(list(read_swept(root.store))) == len(there(root, "swept/")) == 4
        root._use(plain)
        found = look(root, 83).swept
        assert (found.objects, found.n_refused, found.refused) == (2, 0, {})
        assert there(root) == live_keys(root, two)


def test_every_deletion_is_on_record_before_it_is_done():
    root = fresh()
    two_versions(root)
    look(root, 0)
    before = {info.key for info in root.store.list("")}
    recorded = []

    def delete(*_):
        recorded.extend(key for table in read_swept(root.store) for key in table["key"].to_pylist())

    root._use(meanwhile(root.store, "delete_many", delete))
    look(root, 80, max_objects=4)
    assert len(recorded) == 4
    look(root, 80)
    deleted = before - {info.key for info in root.store.list("")}
    named = [key for table in read_swept(root.store) for key in table["key"].to_pylist()]
    assert deleted <= set(named)
    assert sorted(named) == sorted(set(named)), "each once, where nobody was killed"
    assert [table.num_rows for table in read_swept(root.store)] == [4, len(named) - 4], "in their order"


def test_each_clock_waits_for_its_own_grace():
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


def test_clock_that_is_set_ends_no_grace():
    """While the machine runs its wall clock counts nothing, put forward or back."""
    root = fresh()
    one, _ = two_versions(root)
    year = 366 * 24
    for hour, wall in ((0, 0), (1, 100), (2, year), (3, -year), (71.9, 0)):
        look(root, hour, wall=wall)
        assert is_whole(root, one)
    look(root, 72, wall=700)
    assert is_gone(root, one)


def test_clock_that_jumps_between_two_runs_ends_no_grace():
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


def test_clock_that_is_set_aborts_nobody():
    """Between two looks that follow so soon that nobody's counter has moved."""
    for run, silence_s in (("one", 72 * 3600), ("two", 72 * 3600), ("one", 600), ("two", 600)):
        root, one, reader = retired_with_reader()
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


def test_takedown_passes_names_and_leases_and_no_hold():
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
    assert there(root) == live_keys(root, three)
    reader.close()


def test_writer_may_be_called_probe():
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


def test_one_dataset_alone_is_swept():
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
