"""`penstock repair`: a log that a flipped bit broke goes on, with all that was acknowledged, and says what was done."""

import json
import shutil
from base64 import b64decode

import pytest

import loader
from loader.dataset.log.entries import canonical, entry_checksum, entry_key, parse, seal
from loader.dataset.log.log import Log
from loader.errors import Conflict, Corrupt
from penstock.upkeep.repair import apply_repair, plan_repair
from penstock.upkeep.verify.root import verify_root
from tests.refusals import refusal


@pytest.fixture
def root(tmp_path):
    root = loader.Root(tmp_path / "root")
    for name in "abc":
        with root.write("d") as writer:
            writer.add(name, {"cls": 1})
    root.tag("d@1", "good")
    return root


def old(root):
    """The same log as a release without checksums would have written it, entry by entry."""
    prev = ""
    for n in range(1, root.state.n + 1):
        value = json.loads(root.store.get(entry_key(n)).data)
        value.pop("checksum")
        entry = parse(n, canonical({**value, "prev": prev}))
        root.store.put(entry_key(n), entry.data)
        prev = entry.sha256


def seal_entry(root, read, body, *, by_old_release=True):
    """An entry behind the last, by a writer to whom the last came as `read`."""
    n = root.state.n
    misread = parse(n, read(root.store.get(entry_key(n)).data))
    value = json.loads(seal(n + 1, misread.sha256, "ff", 7, body).data)
    if by_old_release:
        value.pop("checksum")
    root.store.put_if_absent(entry_key(n + 1), canonical(value))
    return n + 1


def time_flipped(data):
    at = data.index(b'"at_us":') + len(b'"at_us":') + 1
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def name_flipped(data):
    return data.replace(b'"good"', b'"gnod"')


BEGIN = {"kind": "begin", "txn": "t", "dataset": "d", "parent": None}


def again(root):
    return loader.Root(root.url)


def contents(root):
    return {record.id: record.name for record in root.state.versions("d")}, sorted(root.state.txns)


def repair_output(root, cli, *options):
    planned = cli("repair", "--by", "ann", *options, root=root.url)
    with pytest.raises(Corrupt):
        again(root).log.refresh()
    assert planned.code == 1
    done = cli("repair", "--by", "ann", "--apply", *options, root=root.url)
    assert done.code == 0, done.err
    assert cli("repair", "--by", "ann", root=root.url).out == "the log is intact: nothing to repair\n"
    return planned.out


def test_whole_log_is_left_alone(root, cli):
    before = [info.key for info in root.store.list("")]
    assert (
        cli("repair", "--by", "ann", "--apply", root=root.url).out == "the log is intact: nothing to repair\n"
    )
    assert [info.key for info in root.store.list("")] == before


def test_entry_that_was_sealed_on_a_flipped_bit(root, cli):
    """Nothing is replaced; the record says which link, by whom and why; verify names that entry until then."""
    old(root)
    versions, txns = contents(again(root))
    n = seal_entry(root, time_flipped, BEGIN)
    stored = {info.key: root.store.get(info.key).data for info in root.store.list("log/")}
    with pytest.raises(Corrupt, match="penstock repair"):
        again(root).log.refresh()
    (problem,) = verify_root(again(root)).problems
    assert problem.address == entry_key(n)
    assert f"after {entry_key(n - 1)} with byte 10 read as" in problem.what
    said = repair_output(root, cli)
    assert said.startswith(f"log/repair-{n:012d}.json: entry {n} was written after byte")
    assert contents(again(root)) == (versions, sorted([*txns, "t"]))
    assert {key: root.store.get(key).data for key in stored} == stored
    (record,) = (info.key for info in root.store.list("log/repair-"))
    value = json.loads(root.store.get(record).data)
    assert (value["n"], value["by"]) == (n, "ann")
    report = verify_root(again(root))
    assert (report.problems, report.foreign) == ([], [])
    again(root).tag("d@2", "later")
    assert verify_root(again(root)).problems == []
    assert cli("migrate", "run", f"{root.url}-mirror", root=root.url).code == 0
    assert contents(loader.Root(f"{root.url}-mirror")) == contents(again(root))


def test_damaged_record_of_a_repair_counts_for_nothing(root, cli):
    old(root)
    n = seal_entry(root, time_flipped, BEGIN)
    repair_output(root, cli)
    key = f"log/repair-{n:012d}.json"
    good = root.store.get(key).data
    for damaged in (good.replace(b'"ann"', b'"bob"'), b"{", b"[" * 10_000, b'"x"'):
        root.store.put(key, damaged)
        with pytest.raises(Corrupt):
            again(root).log.refresh()
    repair_output(root, cli)
    assert again(root).state.n == n


@pytest.mark.parametrize("of_old_release", [True, False])
def test_damaged_entry_is_restored_without_a_mirror(root, cli, of_old_release):
    """One changed byte, proved by the hash in the next entry, or by its own checksum where it is the last."""
    if of_old_release:
        old(root)
    n = 3 if of_old_release else root.state.n
    good = root.store.get(entry_key(n)).data
    damaged = good.replace(b'"kind"', b'"kinf"')
    root.store.put(entry_key(n), damaged)
    assert f"{entry_key(n)}: " in repair_output(root, cli)
    assert root.store.get(entry_key(n)).data == good
    (record,) = (info.key for info in root.store.list("log/repair-"))
    value = json.loads(root.store.get(record).data)
    assert b64decode(value["damaged"]) == damaged
    assert value["checksum"] == entry_checksum(value)
    assert verify_root(again(root)).problems == []


@pytest.mark.parametrize("damage", [time_flipped, lambda data: b"", lambda data: data[:-9], None])
def test_damaged_or_lost_entry_is_restored_from_a_mirror(root, cli, tmp_path, damage):
    mirror = str(tmp_path / "mirror")
    assert cli("migrate", "run", mirror, root=root.url).code == 0
    good = root.store.get(entry_key(4)).data
    if damage is None:
        root.store.delete_many([entry_key(4)])
    else:
        root.store.put(entry_key(4), damage(good))
    repair_output(root, cli, "--mirror", mirror)
    assert root.store.get(entry_key(4)).data == good
    assert verify_root(again(root)).problems == []


@pytest.mark.parametrize("damaged_at_rest", [False, True])
def test_copy_of_the_root_says_which_of_two_readings_is_right(root, cli, tmp_path, damaged_at_rest):
    """Of an entry of an earlier release, which says nothing of itself; the readings differ in a name."""
    old(root)
    copy = tmp_path / "copy"
    shutil.copytree(root.url, copy)
    n = root.state.n
    if damaged_at_rest:
        seal_entry(root, lambda data: data, BEGIN)
        root.store.put(entry_key(n), name_flipped(root.store.get(entry_key(n)).data))
    else:
        seal_entry(root, name_flipped, BEGIN)
    repair_output(root, cli, "--mirror", copy)
    assert [info.key.count("-") for info in root.store.list("log/repair-")] == [2 if damaged_at_rest else 1]
    assert again(root).state.refs["d", "good"].number == 1


def test_what_neither_a_mirror_nor_a_checksum_tells_is_asked(root, cli):
    old(root)
    n = seal_entry(root, name_flipped, BEGIN)
    refused = cli("repair", "--by", "ann", root=root.url)
    assert refused.code == 2
    assert "--believe stored" in refused.err
    steps = plan_repair(root.store, by="ann", believe="next")
    assert [step.key for step in steps] == [entry_key(n - 1)]
    repair_output(root, cli, "--believe", "stored")
    assert ("d", "good") in again(root).state.refs


def test_what_was_read_may_be_believed(root):
    old(root)
    seal_entry(root, name_flipped, BEGIN)
    state = apply_repair(root.store, plan_repair(root.store, by="ann", believe="next"), by="ann")
    assert ("d", "gnod") in state.refs


def test_edit_by_hand_is_not_blessed(root, cli, tmp_path):
    """More than one byte, with a right checksum: only a copy of the root tells what was there."""
    good = root.store.get(entry_key(3)).data
    value = {**json.loads(good), "at_us": 1}
    root.store.put(entry_key(3), canonical({**value, "checksum": entry_checksum(value)}))
    refused = cli("repair", "--by", "ann", root=root.url)
    assert refused.code == 1
    assert "no --mirror was given" in refused.err
    other = loader.Root(tmp_path / "other")
    with other.write("d") as writer:
        writer.add("x", {"cls": 1})
    with refusal(Conflict, what="id", where=f"{tmp_path}/other", accepted=f"{tmp_path}/root"):
        plan_repair(root.store, by="ann", mirror=other.store)


def test_two_broken_places_far_apart(root):
    """What lies between is read as it is."""
    old(root)
    first = seal_entry(root, time_flipped, BEGIN)
    apply_repair(root.store, plan_repair(root.store, by="ann"), by="ann")
    log = Log(root.store)
    for k in range(600):
        log.begin("d", txn=f"t{k}")
    entry = json.loads(root.store.get(entry_key(300)).data)
    root.store.put(entry_key(300), canonical(entry).replace(b'"parent"', b'"pbrent"'))
    root.store.delete_many([f"log/repair-{first:012d}.json"])
    steps = plan_repair(root.store, by="ann")
    assert [step.n for step in steps] == [first, 300]
    assert apply_repair(root.store, steps, by="ann").n == log.state.n


def test_mirror_of_a_repaired_root_is_whole(root, cli, tmp_path):
    """The record of the repair goes with the entries; what the mirror becomes reads without the primary."""
    old(root)
    n = seal_entry(root, time_flipped, BEGIN)
    repair_output(root, cli)
    mirror = tmp_path / "mirror"
    assert cli("migrate", "run", mirror, root=root.url).code == 0
    copy = loader.Root(mirror)
    assert (
        copy.store.get(f"log/repair-{n:012d}.json").data == root.store.get(f"log/repair-{n:012d}.json").data
    )
    assert verify_root(copy).problems == []
    assert contents(copy) == contents(again(root))


def test_damaged_entry_that_is_not_listed_yet_is_restored(root, monkeypatch):
    """A listing that came late: the end of the log is where no entry is."""
    n = root.state.n
    good = root.store.get(entry_key(n)).data
    root.store.put(entry_key(n), good.replace(b'"kind"', b'"kinf"'))
    listing = root.store.list

    def late(prefix="", start_after=None):
        return (info for info in listing(prefix, start_after) if info.key != entry_key(n))

    monkeypatch.setattr(root.store, "list", late)
    assert [(step.key, step.data) for step in plan_repair(root.store, by="ann")] == [(entry_key(n), good)]
