"""What a look costs, what is noted and reported, and the command line."""

import errno
import json
import math
import os
import re
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import loader
from benchmarks.collect import HOUR_US, root_of
from loader.dataset.log import leases as renewal
from loader.dataset.log.leases import Lease
from loader.errors import Forbidden, FormatTooNew, InvalidName, InvalidRuntime, NotARoot, Throttled
from penstock.units import parse_length, parse_size
from penstock.upkeep.gc import Moment, Options, collect, plan, sweep
from penstock.upkeep.gc import clients as notes
from penstock.upkeep.gc.clients import Signs, earliest_us, now, passed, read_signs
from penstock.upkeep.gc.deleted_record import read_swept
from penstock.upkeep.gc.needed import ABORTED, FOREIGN, Tally, _count
from penstock.upkeep.gc.plan import Before
from tests.refusals import refusal


def test_what_a_look_costs_does_not_grow_with_the_objects(monkeypatch):
    """But for the listing, and 0.2 KB of memory: of Python's own next to nothing."""
    monkeypatch.setattr(plan, "LISTED_ROWS", 500)
    requests, peaks = [], []
    for objects in (4_000, 16_000):
        root, store = root_of(objects, f"costs-{objects}")
        collect(root, Options(name="c"), at=moment(0))
        store.requests = 0
        tracemalloc.start()
        report = collect(root, Options(name="c"), at=moment(80 * HOUR_US))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        requests.append(store.requests)
        assert sum(n for n, _ in report.due.values()) == objects // 2 + 2  # manifest and table of shards
    assert requests[0] == requests[1] < 25
    assert peaks[1] - peaks[0] < 12_000 * 250


def moment(us, run="one", wall_us=0):
    """`us` since the machine's start."""
    return Moment(at_us=us + wall_us, run=run, run_us=us)


def test_time_that_passed(caplog):
    day = 86_400_000_000
    assert passed(None, moment(5), day) is None
    assert passed(moment(5), moment(5 + 90 * day), day) == 90 * day  # it ran meanwhile, or slept
    for wall_us in (-40 * day, 40 * day):
        assert passed(moment(5), moment(7, wall_us=wall_us), day) == 2
    assert passed(moment(5), moment(4), day) == 0
    assert caplog.records == []
    for before, after in (("one", "two"), ("", "one"), ("", "")):  # none: notes of an earlier release
        assert passed(moment(5, before), moment(5 + day, after), day) == day
        assert passed(moment(day, before), moment(day - 1, after), day) == 0
        assert caplog.records == []
        assert passed(moment(day, before), moment(0, after), day) is None
        assert passed(moment(0, before), moment(32 * day, after), day) == day
        assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
        caplog.clear()


def test_this_machines_clocks_and_their_notes():
    before, after = now(), now()
    assert 0 <= passed(before, after, 0) < 60_000_000
    assert Moment.from_json(json.loads(json.dumps(before.to_json()))) == before
    assert Moment.from_json({"at_us": 7}) == Moment(at_us=7)


def test_clock_that_was_put_forward_makes_no_version_older(cli, own, monkeypatch):
    """A month, since the last look of this machine."""
    day = 86_400_000_000
    assert earliest_us(None, moment(5)) == 5
    assert earliest_us(moment(0), moment(5, wall_us=day)) == 5
    assert earliest_us(moment(0, wall_us=day), moment(5)) == 5
    assert earliest_us(moment(0, "two"), moment(5, wall_us=day)) == 5 + day
    cli("gc", "plan", root=own)
    ahead_ns = time.time_ns() + 31 * day * 1000
    monkeypatch.setattr(time, "time_ns", lambda: ahead_ns)
    arguments = ("gc", "retire", "d", "--keep-last", "1", "--keep-days", "30", "--json")
    assert cli(*arguments, root=own).json["versions"] == []
    cli("gc", "plan", root=own)  # from now on that is what the clock says
    assert cli(*arguments, root=own).json["versions"] == ["d@3"]


def test_signs_of_life():
    first = Signs().after({"a": "1", "b": "1"}, moment(0), 0)
    second = first.after({"a": "1", "b": "2", "c": "1"}, moment(10), 0)
    third = second.after({"a": "1", "b": "2", "c": "1"}, moment(30), 0)
    assert {key: third.silent_us(key) for key in "abcd"} == {"a": 30, "b": 20, "c": 20, "d": 0}
    assert third.after({"a": "2"}, moment(40), 0).silent_us("a") == 0


def test_notes_of_an_earlier_release_count_with_a_bound(properties):
    """They have the wall clock alone."""
    root = properties.fresh()
    one, _ = properties.two_versions(root)
    for hour, whole in ((0, True), (72, True), (144, False)):
        collect(root, Options(name="c"), apply=True, now_us=hour * HOUR_US)
        assert properties.is_whole(root, one) == whole


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"{}",
        b'{"format":1,"at_us":0,"signs":[]}',
        b'{"format":1,"at_us":0,"signs":{"a":[1]}}',
        b'{"format":1,"at_us":1e999,"signs":{}}',
        pytest.param(b"[" * 200_000, id="brackets"),
    ],
)
def test_damaged_notes_begin_every_grace_again(properties, caplog, data):
    root = properties.fresh()
    one, _ = properties.two_versions(root)
    properties.look(root, 0)
    root.store.put("collect/c/signs.json", data)
    root.store.put("collect/c/plan.parquet", data)
    properties.look(root, 80)
    said = [one.getMessage() for one in caplog.records if "all grace periods restart" in one.getMessage()]
    assert ["signs.json" in one for one in said] == [True, False]
    assert properties.is_whole(root, one)
    properties.look(root, 152)
    assert properties.is_gone(root, one)


def test_damaged_signs_of_life_end_no_look(properties, tmp_path):
    """They never move: whoever left them is dead after the silence. What cannot be a key is left alone."""
    root = loader.Root(tmp_path / "root")
    one = properties.write(root, "a")
    txns = [root.begin("d") for _ in range(3)]
    folder = tmp_path / "root" / "leases"
    bodies = [b'{"beat":1e999,"holder":"x","versions":[]}', b'{"beat":1,"holder":"\\ud800"}', b"[" * 200_000]
    for txn, body in zip(txns, bodies, strict=True):
        root.store.put(f"heartbeats/{txn}.json", body)
        root.store.put(f"leases/{txn}.json", body)
    host = b'{"beat":1,"host":"\\ud800","versions":["' + one.id.encode() + b'"]}'
    root.store.put("leases/host.json", host)
    (folder / "a\x01.json").write_bytes(b"{}")
    root.close()
    for hour in (0, 80, 160):
        found = properties.look(root, hour)
        assert set(found.silent) == (set(txns) if hour == 80 else set())
    assert [one.name for one in folder.iterdir()] == ["a\x01.json"]
    assert found.swept.n_refused == 0
    assert properties.is_whole(root, one)


def test_plan_whose_bytes_were_flipped_begins_every_grace_again(properties, caplog):
    root = properties.fresh()
    one, _ = properties.two_versions(root)
    properties.look(root, 0)
    key = "collect/c/plan.parquet"
    whole = root.store.get(key).data

    def flip(at):
        root.store.put(key, whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])

    for at in range(0, len(whole), 41):
        flip(at)
        Before.read(root.store, "c", moment(80 * HOUR_US), 0)
    caplog.clear()
    flip(60)  # of the first page, whose checksum tells
    properties.look(root, 80)
    assert "all grace periods restart" in caplog.text
    assert properties.is_whole(root, one)
    properties.look(root, 152)
    assert properties.is_gone(root, one)


def test_plan_that_may_not_be_read_is_not_taken_for_a_damaged_one(properties):
    root = properties.fresh()
    properties.two_versions(root)
    properties.look(root, 0)

    def raise_forbidden():
        raise Forbidden("no")

    with pytest.raises(Forbidden):
        Before.read(properties.meanwhile(root.store, "get", raise_forbidden), "c", moment(0), 0)


def test_notes_of_which_a_digit_flipped_count_for_nothing(properties, caplog):
    """A silence that is longer than it was would abort a live transaction."""
    root = properties.fresh()
    root.begin("d", txn="t")
    properties.look(root, 0)
    properties.look(root, 1)
    key = "collect/c/signs.json"
    good = root.store.get(key).data
    (silent_us,) = (silent for _, silent in json.loads(good)["signs"].values())
    assert read_signs(root.store, "c").silent_us("heartbeats/t.json") == silent_us > 0
    root.store.put(key, good.replace(b"%d" % silent_us, b"9%d" % silent_us))
    assert read_signs(root.store, "c").states == {}
    assert "its checksum does not hold" in caplog.text


def test_notes_of_a_newer_release_are_refused(properties):
    root = properties.fresh()
    root.create()
    root.store.put("collect/c/signs.json", b'{"at_us":0,"format":2,"signs":{}}')
    with refusal(FormatTooNew, what="format", within="/collect/c/signs.json", given=2, accepted=1):
        read_signs(root.store, "c")


def test_what_is_refused(properties, tmp_path):
    names = ("grace_s", "silence_s", "max_objects", "max_bytes")
    for wrong in ({name: value} for name in names for value in (-1, math.nan, -math.inf)):
        ((name, value),) = wrong.items()
        with refusal(InvalidRuntime, what=name, given=value, accepted="0 or more"):
            Options(**wrong)
    with refusal(InvalidName, what="name of a collector", given="../x"):
        Options(name="../x")
    with pytest.raises(NotARoot):
        collect(loader.Root(tmp_path / "none"))
    assert notes.check_name(notes.own_name()) == Options().name


def test_numbers_without_end(properties):
    """More than a plan can hold: nothing is ever due, or everything at once."""
    for wait in (math.inf, 1e14, 999_999_999 * 86_400.0):
        for most in (math.inf, 99_999_999 * 2**40, 2**63):
            root = properties.fresh()
            one, _ = properties.two_versions(root)
            options = {"silence_s": wait, "max_bytes": most, "max_objects": most}
            assert properties.look(root, 80, grace_s=wait, **options).due == {}
            assert properties.is_whole(root, one)
            report = properties.look(root, 80, grace_s=0, **options)
            assert properties.is_gone(root, one)
            json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert parse_size("9" * 400) == parse_size("99999999TiB") == 2**63 - 1


def test_who_is_alive_is_not_silent_before_he_could_say_so(properties, monkeypatch):
    """Twice the time between two renewals is the least that a collector waits."""
    for wrong in (0, 1, 599.9):
        with refusal(InvalidRuntime, what="silence_s", given=wrong, accepted=600.0):
            Options(silence_s=wrong)
    monkeypatch.setattr(renewal, "RENEW_EVERY_S", 1000)
    with refusal(InvalidRuntime, what="silence_s", given=1999, accepted=2000):
        Options(silence_s=1999)
    monkeypatch.undo()
    root, one, reader = properties.retired_with_reader()
    txn = root.begin("d")
    for hour in (0, 0.15):
        found = properties.look(root, hour, silence_s=600, grace_s=0)
        assert not found.silent
        assert root.state.txns[txn].status == "open"
        assert properties.is_whole(root, one)
    assert properties.look(root, 0.2, silence_s=600, grace_s=0).silent == [txn]
    reader.close()


def test_transactions_of_any_name(properties):
    """As earlier releases began them. Of those that cannot have a heartbeat nobody sees that they live."""
    root, txn = properties.fresh(), "größe 7"
    root.create()
    root.log.append(lambda _: {"kind": "begin", "txn": txn, "dataset": "d", "parent": None})
    properties.look(root, 0)
    found = properties.look(root, 80)
    assert list(found.silent) == [txn]
    assert root.state.txns[txn].status == "aborted"


def test_transaction_that_is_committed_this_moment_is_not_told_as_aborted(properties):
    root = properties.fresh()
    txns = [root.begin("d") for _ in range(2)]
    part = loader.write_part(root, txns[0], [("a", {"cls": 1})])
    properties.look(root, 0)
    writer, store = properties.again(root), root.store
    root._use(
        properties.meanwhile(store, "put", lambda: writer.publish("d", [part]))
    )  # signs of life are noted
    found = properties.look(root, 80)
    assert found.silent == txns[1:]
    assert f"transaction {txns[1]}: no sign of life, aborted" in found.to_text()
    assert txns[0] not in found.to_text()
    assert [root.state.txns[txn].status for txn in txns] == ["committed", "aborted"]


def test_dataset_without_a_version_can_be_swept_alone(properties):
    root = properties.fresh()
    txn = root.begin("d")
    loader.write_part(root, txn, [("a", {"cls": 1})])
    root.abort(txn, "no")
    assert properties.look(root, 0, dataset="d", grace_s=0).swept.objects > 0
    assert properties.there(root) == set()


def test_without_the_right_to_delete_a_sweep_ends(properties, monkeypatch):
    monkeypatch.setattr(sweep, "GIVE_UP", 3)
    root = properties.fresh()
    one, _ = properties.two_versions(root)
    properties.look(root, 0)
    plain, before = root.store, properties.there(root)
    every = {info.key for info in plain.list("")}
    root._use(properties.Holding(plain, every, stops=False))
    with refusal(Forbidden, what="object", given="held") as error:
        properties.look(root, 80)
    assert "objects that are due could be deleted; no more were tried" in error.value.__notes__[0]
    assert properties.there(root) == before
    due = min(key for key in before if key.startswith(f"data/{one.txn}/"))
    root._use(properties.Holding(plain, every - {due}, stops=False))
    assert properties.look(root, 80).swept.objects == 1, "there is the right to delete"


def test_store_that_does_not_answer_is_no_object_that_cannot_be_deleted(properties):
    root = properties.fresh()
    properties.two_versions(root)
    properties.look(root, 0)
    asked = []

    def slow():
        asked.append(1)
        raise Throttled("slow down")

    root._use(properties.meanwhile(root.store, "delete_many", slow))
    with pytest.raises(Throttled):
        properties.look(root, 80)
    assert asked == [1]


def test_what_a_killed_writer_had_not_finished_goes(properties, tmp_path):
    """From a folder, with its transaction: what belongs to an open one, to none, or to no collector stays."""
    root = loader.Root(tmp_path / "root")
    properties.write(root, "a")
    killed, alive = (root.begin("d") for _ in range(2))
    beat = root.heartbeat(alive)
    committed = next(iter(root.state.datasets["d"])).txn
    name = ".tmp-0123456789abcdef"
    left = [f"data/{txn}/0123456789abcdef/{name}" for txn in (killed, alive, committed, "nobodys")]
    odd = ["log/.tmp-mine", f"data/{killed}/0123456789abcdef/.tmp-mine"]
    for path in [*left, *odd]:
        file = tmp_path / "root" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"secret")
    root.close()

    def stay(*hours, **options):
        for hour in hours:
            beat.beat()
            found = properties.look(root, hour, **options)
        return [path for path in [*left, *odd] if (tmp_path / "root" / path).exists()], found

    assert stay(0, 71)[0] == [*left, *odd]
    assert stay(72, 80, apply=False)[0] == [*left, *odd]
    there, found = stay(80)
    assert there == [left[0], left[1], left[3], *odd], "its transaction was open until now"
    there, found = stay(152)
    assert there == [left[1], left[3], *odd]
    assert found.swept.why == {"aborted transaction": 1}
    assert found.tally.sums["", "foreign"] == (2, 12)
    swept = {key for table in read_swept(root.store) for key in table["key"].to_pylist()}
    assert {left[0], left[2]} <= swept
    root.abort(alive, "done")
    assert stay(160, 232)[0] == [left[3], *odd]
    assert properties.is_whole(root, root.record("d@1"))


def test_collect_deletes_unfinished_files_of_killed_writers_beside_data(properties, tmp_path):
    """Once they have been as they are for the time of silence, and then for the grace."""
    root = loader.Root(tmp_path / "root")
    _, kept = properties.two_versions(root)
    folders = ("", *of_the_format(), f"cards/d/000002-{kept.id}/", f"jobs/{'0' * 32}/results/")
    names = [f"{folder}.tmp-0123456789abcdef" for folder in folders]
    for name in names:
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_bytes(b"secret")
    away = tmp_path / "away"
    away.mkdir()
    (away / ".tmp-0123456789abcdef").write_bytes(b"a stranger's")
    (tmp_path / "root" / "views" / "linked").symlink_to(away)

    def there(hour, **options):
        properties.look(root, hour, **options)
        return [name for name in names if (tmp_path / "root" / name).exists()]

    assert there(0) == there(70) == names
    (tmp_path / "root" / "log" / ".tmp-0123456789abcdef").write_bytes(b"its writer is at work")
    assert there(73) == there(143) == names
    assert there(146, apply=False) == names
    assert there(147) == ["log/.tmp-0123456789abcdef"]
    assert there(152) == ["log/.tmp-0123456789abcdef"]
    assert there(230) == []
    assert (away / ".tmp-0123456789abcdef").read_bytes() == b"a stranger's"
    assert properties.is_whole(root, root.record(kept.name))


def of_the_format():
    """Every folder of a root that docs/format.md lists, but for `data/`."""
    page = Path("docs/format.md").read_text()
    layout = page.partition("    penstock.json")[2].partition("\n\n")[0]
    folders = set(re.findall(r"(?m)(?:^    |(?<=  ))([a-z]+/)", layout))
    assert folders >= {"log/", "views/", "tables/", "stages/", "heartbeats/", "migrations/", "data/"}
    return folders - {"data/"}


def test_nothing_behind_a_link_goes(properties, tmp_path):
    """A transaction, an attempt, a file, cards and hints elsewhere, of a root that is a link itself."""
    (tmp_path / "true").mkdir()
    (tmp_path / "root").symlink_to("true")
    root, away = loader.Root(tmp_path / "root"), tmp_path / "away"
    one, _ = properties.two_versions(root)
    card = f"cards/d/000001-{one.id}/card.json"
    root.store.put(card, b"{}")
    for n in range(6):
        root.store.put(f"log/state-{256 * n:012d}.json", b"{}")
    root.store.put("leases/x.json", b'{"beat":1,"versions":[]}')
    root.store.put("heartbeats/probe-0", b"")
    links = [tmp_path / "true" / "cards" / "d", tmp_path / "true" / "log" / f"state-{0:012d}.json"]
    links += [tmp_path / "true" / "leases", tmp_path / "true" / "heartbeats"]
    attempts = sorted((tmp_path / "true" / "data" / one.txn).iterdir())
    shard = next(path for path in attempts[0].iterdir())
    links += [shard, *attempts[1:]]
    gone = tmp_path / "true" / "data" / root.begin("d", txn="given-up") / "a" / "x.tar"
    gone.parent.mkdir(parents=True)
    gone.write_bytes(b"x")
    root.abort("given-up", "no")
    links.append(gone.parent.parent)
    for number, link in enumerate(links):
        away.joinpath(str(number)).parent.mkdir(exist_ok=True)
        link.rename(away / str(number))
        link.symlink_to(away / str(number))
    root.close()
    before = sorted(path for path in away.rglob("*"))
    for hour in (0, 80, 160):
        found = properties.look(root, hour)
        assert found.swept.n_refused == 0
    assert sorted(path for path in away.rglob("*")) == before
    assert all(link.is_symlink() for link in links)
    told = {str(link.relative_to(tmp_path / "true")) for link in links}
    assert told <= set(found.tally.foreign)
    assert set(properties.there(root, f"data/{one.txn}/")) == {
        str(path.relative_to(tmp_path / "true"))
        for link in links
        if one.txn in str(link)
        for path in ([link] if link.is_file() else link.rglob("*"))
    }


def test_link_that_is_laid_meanwhile_is_not_followed(properties, tmp_path):
    root = loader.Root(tmp_path / "root")
    one, _ = properties.two_versions(root)
    properties.look(root, 0)
    folder = tmp_path / "root" / "data" / one.txn

    put_file = root.store.put_file

    def lay(key, path):
        put_file(key, path)
        folder.rename(tmp_path / "away")
        folder.symlink_to(tmp_path / "away")

    n = len(list(folder.rglob("*.*")))
    root.store.put_file = lay  # the plan is made
    found = properties.look(root, 80)
    assert len(list((tmp_path / "away").rglob("*.*"))) == n
    assert found.swept.n_refused > 0
    assert all("is a symbolic link" in why for why in found.swept.refused.values())
    assert properties.is_whole(root, one)


def test_what_a_disk_refuses_to_delete_is_told(cli, own, monkeypatch, caplog):
    """The rest of its piece goes; exit status 1."""
    unlink = os.unlink
    cli("gc", "plan", root=own)
    dry = cli("gc", "sweep", "--grace", "0h", "--json", root=own).json["swept"]
    assert dry["refused"] == {"objects": 0, "some": {}}
    held = []

    def refuse(name, **options):
        folder = os.readlink(f"/proc/self/fd/{options['dir_fd']}") if "dir_fd" in options else ""
        path = os.path.join(folder, name)
        if "/data/" in path and not held:
            held.append(path)
        if path in held:
            raise PermissionError(errno.EACCES, "Permission denied", name)
        unlink(name, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    run = cli("gc", "sweep", "--grace", "0h", "--apply", "--json", root=own)
    assert run.code == 1
    swept = run.json["swept"]
    assert swept["objects"] == dry["objects"] - 1
    ((key, why),) = swept["refused"]["some"].items()
    assert held == [f"{own}/{key}"]
    assert f"cannot delete {own}/{key}: Permission denied" in why
    assert "1 objects that are due could not be deleted, and were passed over" in caplog.text
    again = cli("gc", "sweep", "--grace", "0h", "--apply", root=own)
    assert again.code == 1
    assert f"0 objects, 0 B deleted; 1 could not be deleted:\n{key}: {why}" in again.out
    monkeypatch.undo()
    assert cli("gc", "sweep", "--grace", "0h", "--apply", root=own).code == 0


def test_owners_and_money(properties):
    root = properties.fresh()
    for number in range(2):
        with root.write("d", producer={"owner": "vision"}) as writer:
            writer.add(f"k{number}", {"cls": 1})
    root.close()
    root.store.put("data/foreign", b"x")
    root.retire("d@1", reason="old")
    report = properties.look(root, 0, apply=False)
    (row,) = report.rows(price=2.0**30)
    assert (row["dataset"], row["owner"], row["due_objects"]) == ("d", "vision", 0)
    assert row["condemned_bytes"] == round(row["condemned_usd_per_month"])
    kinds = ("live", "open", "condemned")
    stored = [info for info in root.store.list("") if info.key.startswith(("data/", "heartbeats/"))]
    assert sum(row[f"{kind}_objects"] for kind in kinds) == len(stored) - 1
    assert sum(row[f"{kind}_bytes"] for kind in kinds) == sum(info.nbytes for info in stored) - 1
    assert report.rows()[0]["condemned_usd_per_month"] == 0
    assert report.price_usd(None) == 0
    assert "1 foreign objects (1 B) are ignored: data/foreign" in report.to_text()
    json.dumps(report.to_json())


def test_owner_is_that_of_the_newest_version_though_it_be_retired(properties):
    root = properties.fresh()
    for number, owner in enumerate(("ann", "bob")):
        with root.write("d", producer={"owner": owner}) as writer:
            writer.add(f"k{number}", {"cls": 1})
    root.close()

    def owner(hour, **options):
        return [
            row["owner"] for row in properties.look(root, hour, **options).rows() if row["dataset"] == "d"
        ]

    root.retire("d@2", reason="old")
    assert owner(0) == ["bob"]
    assert owner(80) == ["bob"]
    assert owner(80) == ["ann"], "of the newest whose manifest is there"
    root.retire("d@1", reason="old")
    root.store.delete_many([root.record("d@2", retired=True).manifest])
    assert owner(81) == [""]
    with root.write("e", producer={"owner": "eve"}) as writer:
        writer.add("k", {"cls": 1})
    root.retire("e@1", reason="old")
    root.close()
    assert [row["owner"] for row in properties.look(root, 82).rows() if row["dataset"] == "e"] == ["eve"]


class Passes(np.ndarray):
    """Counts elements that go through numpy's functions."""

    elements = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **named):
        Passes.elements += max(np.size(one) for one in inputs)
        plain = [one.view(np.ndarray) if isinstance(one, Passes) else one for one in inputs]
        out = getattr(ufunc, method)(*plain, **named)
        return out.view(Passes) if isinstance(out, np.ndarray) else out

    def __array_function__(self, function, types, args, named):
        Passes.elements += self.size
        plain = [one.view(np.ndarray) if isinstance(one, Passes) else one for one in args]
        return function(*plain, **named)


def test_counting_a_piece_of_a_listing_does_not_take_longer_for_more_datasets():
    """Bytes are whole numbers however many they are."""
    n, taken = 4_000, []
    for many in (10, 1_000):
        tally, names = Tally(), [f"d{number}" for number in range(many)]
        of = np.arange(n) % many
        fate = np.where(np.arange(n) < 3_000, ABORTED, FOREIGN).astype(np.int8)
        nbytes = np.full(n, 2**53 + 1)
        Passes.elements = 0
        _count(tally, names, of.view(Passes), fate.view(Passes), nbytes.view(Passes))
        taken.append(Passes.elements)
        each = 3_000 // many
        assert tally.sums == {(name, "aborted transaction"): (each, each * (2**53 + 1)) for name in names}
    assert taken[1] - taken[0] <= 12 * 1_000, "what is per dataset is so once, not once per object"
    assert taken[0] <= 8 * n


def test_what_is_too_large_for_a_sweep_is_told(cli, own, caplog):
    cli("gc", "plan", root=own)
    run = cli("gc", "sweep", "--grace", "0h", "--apply", "--max-bytes", "0", root=own)
    assert "are larger than --max-bytes, and stay" in run.out
    (record,) = [one for one in caplog.records if one.name == "penstock.upkeep.gc.sweep"]
    assert record.levelname == "WARNING"
    assert (
        "objects that are due were passed over, as each is larger than max_bytes, 0 B: data/" in caplog.text
    )
    assert "a sweep with a larger --max-bytes deletes them" in caplog.text
    caplog.clear()
    cli("gc", "sweep", "--grace", "0h", "--apply", root=own)
    assert "passed over" not in caplog.text


def test_lengths_and_sizes():
    assert [parse_length(text) for text in ("0h", "90s", "1.5m", "72h", "7d")] == [
        0,
        90,
        90,
        259_200,
        604_800,
    ]
    assert [parse_size(text) for text in ("0", "4096", "1.5KiB", "2TiB")] == [0, 4096, 1536, 2**41]
    for wrong in ("", "72", "h", "-1h", "1w", "1e3s", "²d"):
        with refusal(InvalidRuntime, what="length of time", given=wrong):
            parse_length(wrong)
    for wrong in ("", "1GB", "-1", "KiB", "²GiB"):
        with refusal(InvalidRuntime, what="size", given=wrong):
            parse_size(wrong)


# the command line


def test_gc(cli, own):
    plan = cli("gc", "plan", "--json", root=own)
    assert plan.code == 0
    assert {row["dataset"] for row in plan.json["datasets"]} == {"d", "other"}
    assert plan.json["swept"]["objects"] == 0
    assert "leftover" in cli("gc", "plan", root=own).out
    dry = cli("gc", "sweep", "--grace", "0h", root=own)
    assert "would be deleted (--apply does it)" in dry.out
    before = list(loader.Root(own).store.list("data/"))
    body = cli("gc", "sweep", "--grace", "0h", "--dataset", "d", "--apply", "--json", root=own).json
    after = list(loader.Root(own).store.list("data/"))
    swept = [key for table in read_swept(loader.Root(own).store) for key in table["key"].to_pylist()]
    assert len(swept) == body["swept"]["objects"]
    assert {info.key for info in before} - {info.key for info in after} == {
        key for key in swept if key.startswith("data/")
    }
    assert cli("verify", "d@4", "--full", root=own).code == 0
    capped = cli("gc", "sweep", "--grace", "0h", "--apply", "--max-objects", "1", root=own)
    assert "1 objects, " in capped.out
    assert "run it again" in capped.out
    assert "deleted" in cli("gc", "sweep", "--grace", "0h", "--apply", "--max-bytes", "1GiB", root=own).out
    assert cli("verify", "other", "--full", root=own).code == 0


def test_lost_version_is_abandoned(cli, own):
    root = loader.Root(own)
    root.tag("d@1", "paper")
    sweep = ("gc", "sweep", "--grace", "0h", "--apply")
    held = cli(*sweep, "--give-up", "d@1", root=own)
    assert held.code == 2
    assert "d@1 is not retired and can still be read: retire it first" in held.err
    root.retire("d@1", reason="old")
    one = root.record("d@1", retired=True)
    manifest = root.store.get(one.manifest).data
    root.store.put(one.manifest, manifest[:-9] + b"x" + manifest[-8:])
    refused = cli(*sweep, root=own)
    assert refused.code == 1
    assert "d@1 is retired and kept by tag 'paper'" in refused.err
    assert "penstock gc sweep --give-up d@1" in refused.err
    assert cli("gc", "plan", "--give-up", "d@1", root=own).code == 0
    assert cli(*sweep, "--give-up", "d@1", root=own).code == 0
    assert one.manifest not in {info.key for info in root.store.list("data/")}
    assert cli(*sweep, root=own).code == 0, "it is on record"
    assert cli("verify", "d@4", "--full", root=own).code == 0


def test_gc_retire(cli, own):
    assert cli("gc", "retire", "d", "--keep-last", "1", root=own).out == "d@3 would be retired; add --apply\n"
    done = cli("gc", "retire", "d", "--keep-last", "1", "--apply", "--json", root=own).json
    assert done == {"policy": "last 1", "applied": True, "versions": ["d@3"]}
    nothing = cli(
        "gc", "retire", "d", "--keep-last", "1", "--keep-monthly", "2", "--keep-days", "9", root=own
    )
    assert nothing.out == "keep last 1, 2 monthly, 9 days: nothing to retire\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "--grace", "72"), "not a length of time"),
        (("sweep", "--max-bytes", "1GB"), "not a size"),
        (("plan", "--collector", "a b"), "cannot name a collector"),
        (("sweep", "--max-objects", "-1"), "max_objects = -1"),
        (("sweep", "--silence", "5m"), "silence_s = 300; at least 600 is needed"),
        (("retire", "d", "--keep-last", "0"), "last = 0: a whole number"),
        (("retire", "nope", "--keep-last", "1"), "no dataset 'nope'"),
        (("sweep", "--dataset", "nope"), "no dataset 'nope'; it has d, other"),
    ],
)
def test_mistakes(cli, sample_root, arguments, words):
    run = cli("gc", *arguments, root=sample_root[0])
    assert run.code == 2
    assert words in run.err


def test_lease_ls_shows_the_age_of_the_last_beat(cli, own, tmp_path):
    """A collector's count begins at its first look, which says nothing of a reader that died before."""
    lease = Lease(loader.Root(own).store)
    lease.add(loader.Root(own).record("d@1").id)
    (file,) = (tmp_path / own).glob("leases/*.json")
    os.utime(file, (time.time() - 38 * 60,) * 2)
    assert re.search(
        r", last beat [345]\d:\d\d min ago, not seen by a collector yet\n$", cli("lease", "ls", root=own).out
    )
    cli("gc", "plan", root=own)
    (row,) = cli("lease", "ls", "--json", root=own).json
    assert 0 < row["silent_s"] < 3600
    assert 38 * 60 <= row["beat_age_s"] < 58 * 60
    assert re.search(
        r", last beat [345]\d:\d\d min ago, unchanged for at least \d", cli("lease", "ls", root=own).out
    )
    lease.beat()
    assert re.search(r", last beat [\d.]+ s ago, moving\n$", cli("lease", "ls", root=own).out)
    assert cli("lease", "ls", "--collector", "other", root=own).out.endswith(
        " ago, not seen by a collector yet\n"
    )
    lease.close()
