"""Parts that wait for a gate: what publishes them, and what does not."""

import hashlib
from dataclasses import replace

import pytest

import loader
from loader.dataset.log.entries import KINDS, canonical, seal
from loader.dataset.log.fold import fold
from loader.dataset.log.rules import CommitBody, decide_begin
from loader.dataset.log.snapshots import dump_state, load_state
from loader.dataset.log.state import State
from loader.dataset.publishing.commit import Pending, commit
from loader.dataset.publishing.publication_gate import publish_digest
from loader.dataset.shards.part import ShardFile
from loader.dataset.tables.manifest import Change
from loader.errors import Conflict, Corrupt, Fenced, FormatTooNew, InvalidSample, StageNotPublished
from tests.refusals import refusal

FOLDER = "stages/photos/version/000001-a"


def write_parts(root, txn, n=3):
    return [loader.write_part(root, txn, [(f"{txn[:4]}-{i}", {"cls": i})], name=f"p{i}") for i in range(n)]


def verdict(root, parts, *, says="published", exclude=None, supersede=None, r=1, against=(), **other):
    """Path of a gate's record on these parts."""
    body = {
        "publishes": publish_digest(parts, exclude or {}, supersede or {}),
        "against": list(against),
        **other,
    }
    path = f"{FOLDER}/{r:012d}.json"
    root.store.put_if_absent(path, canonical({"verdict": says, "reason": "because", "body": body}))
    return path


@pytest.fixture
def waiting(root):
    """The parts of a gated transaction."""
    return write_parts(root, root.begin("photos", gated=True))


def test_parts_are_published_with_their_verdict(root, waiting):
    version = root.publish("photos", waiting, verdict=verdict(root, waiting))
    assert len(version) == 3
    assert root.publish("photos", waiting).id == version.id  # it is out: again is not a change
    assert loader.Root(root.url).log.verify() == root.state


def test_parts_in_another_order_are_the_same_parts(root, waiting):
    assert len(root.publish("photos", waiting[::-1], verdict=verdict(root, waiting))) == 3


def test_nothing_is_published_without_a_verdict(root, waiting):
    before = {info.key for info in root.store.list("")}
    with pytest.raises(StageNotPublished, match=r"no verdict was given.*release job"):
        root.publish("photos", waiting)
    assert {info.key for info in root.store.list("")} == before
    txn = waiting[0].txn
    hexes = hashlib.sha256(b"").hexdigest()
    body = CommitBody(id=f"v-{hexes}", manifest="m.json", sha256=hexes, parent=None, denies=0)
    with refusal(StageNotPublished, what="verdict", where=f"transaction {txn}", given=""):
        root.log.commit(txn, lambda state: body)
    assert not root.state.versions("photos")


def test_publication_that_asks_for_no_verdict_is_refused(root, waiting):
    before = {info.key for info in root.store.list("")}
    txn = waiting[0].txn
    pending = Pending(dataset="photos", txn=txn, prefix=f"data/{txn}/a", change=Change(), producer={})
    with refusal(StageNotPublished, what="verdict", where=f"transaction {txn}", given=""):
        commit(root.store, root.log, pending)
    assert {info.key for info in root.store.list("")} == before


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda parts, found: (parts[:2], {"verdict": found}), {"what": "parts"}),
        (
            lambda parts, found: (parts, {"verdict": found, "exclude": {parts[0].txn[:4] + "-0": "x"}}),
            {"what": "parts"},
        ),
        (
            lambda parts, found: (parts, {"verdict": found.replace("001.json", "007.json")}),
            {"what": "verdict", "accepted": "a record"},
        ),
        (
            lambda parts, found: (parts, {"verdict": "data/x.json"}),
            {"what": "verdict", "accepted": "a record of a stage of photos"},
        ),
        (
            lambda parts, found: (parts, {"verdict": found.replace("photos", "other")}),
            {"what": "verdict", "accepted": "a record of a stage of photos"},
        ),
    ],
)
def test_verdict_passes_its_own_version(root, waiting, change, fault):
    parts, said = change(waiting, verdict(root, waiting))
    with refusal(StageNotPublished, **fault):
        root.publish("photos", parts, **said)
    assert not root.state.versions("photos")


def test_verdict_on_another_batch_lets_nothing_pass(root, waiting):
    other = write_parts(root, root.begin("photos", gated=True))
    with refusal(StageNotPublished, what="parts"):
        root.publish("photos", waiting, verdict=verdict(root, other))


def test_verdict_is_of_what_is_left_out_of_earlier_versions_too(root, waiting):
    with root.write("photos") as writer:
        writer.add("worse", {"cls": 1})
    shown = verdict(root, waiting, supersede={"worse": "x"})
    with refusal(StageNotPublished, what="parts", where=shown):
        root.publish("photos", waiting, verdict=shown)
    assert len(root.publish("photos", waiting, supersede={"worse": "x"}, verdict=shown)) == 3


def test_parts_under_the_name_of_a_free_transaction(root, waiting):
    free = root.begin("photos")
    for named in ({"txn": free}, {"txn": free, "id": f"{free}-p0"}):
        renamed = replace(waiting[0], **named)
        accepted = f"a part of transaction {free}"
        with refusal(InvalidSample, what="part", given=renamed.id, accepted=accepted):
            root.publish("photos", [renamed])
    mine = write_parts(root, free)
    with refusal(InvalidSample, what="part", given=f"{free}-p0", accepted=f"a part of transaction {free}"):
        root.publish("photos", [replace(mine[0], shards=waiting[0].shards)])
    assert len(root.publish("photos", mine)) == 3


def test_parts_that_were_given_up_stay_so(root, waiting):
    shown = verdict(root, waiting)
    root.abort(waiting[0].txn, "stopped")
    for said in ({}, {"verdict": shown}):
        with pytest.raises(Fenced, match="stopped"):
            root.publish("photos", waiting, **said)


def test_package_that_knows_no_gates_reads_no_further(root, waiting, monkeypatch):
    """It would pass them by, and write an entry that nobody may read."""
    monkeypatch.setattr("loader.dataset.log.entries.KINDS", KINDS - {"gated"})
    with refusal(FormatTooNew, what="kind", given="gated"):
        loader.Root(root.url).open("photos")


def test_verdict_that_failed_lets_nothing_pass(root, waiting):
    with refusal(StageNotPublished, what="verdict", given="failed", accepted="published"):
        root.publish("photos", waiting, verdict=verdict(root, waiting, says="failed"))


def test_verdict_holds_until_the_next(root, waiting):
    first = verdict(root, waiting)
    second = verdict(root, waiting, says="failed", r=2)
    with refusal(Conflict, what="verdict", where=first, given=second):
        root.publish("photos", waiting, verdict=first)


def test_verdict_names_its_version(root, waiting):
    shown = verdict(root, waiting, against=[""])
    with root.write("photos") as writer:
        writer.add("other", {"cls": 1})
    with refusal(Conflict, what="parts", given="no version"):
        root.publish("photos", waiting, verdict=shown)
    again = verdict(root, waiting, against=[writer.version.id], r=2)
    assert len(root.publish("photos", waiting, verdict=again)) == 4


def test_verdict_that_is_no_record_is_named(root, waiting):
    root.store.put_if_absent(f"{FOLDER}/{1:012d}.json", b"[]")
    with refusal(Corrupt, what="verdict", where=f"{root.url}/{FOLDER}/{1:012d}.json"):
        root.publish("photos", waiting, verdict=f"{FOLDER}/{1:012d}.json")


def test_entry_that_commits_without_is_no_entry(root, waiting):
    """Whoever wrote it, with whatever tool."""
    state, hexes = root.state, hashlib.sha256(b"").hexdigest()
    body = {
        "kind": "commit",
        "txn": waiting[0].txn,
        "dataset": "photos",
        "number": 1,
        "id": f"v-{hexes}",
        "manifest": "m.json",
        "sha256": hexes,
        "parent": None,
        "denies": 0,
    }
    for more in ({}, {"verdict": ""}, {"verdict": None}):
        with refusal(Corrupt, what="verdict", given=more.get("verdict")):
            fold(state, seal(state.n + 1, state.prev, "n", 1, {**body, **more}))
    named = fold(state, seal(state.n + 1, state.prev, "n", 1, {**body, "verdict": "stages/x"}))
    assert [one.number for one in named.versions("photos")] == [1]


def test_gate_stays_with_its_transaction(root):
    """Begun again, by whoever does not ask for one; remembered by hints; told by the log."""
    txn = root.begin("photos", gated=True)
    assert root.begin("photos", txn=txn) == txn
    assert root.state.txns[txn].gated
    assert load_state(dump_state(root.state)).txns[txn].gated
    free = root.begin("photos")
    with refusal(Conflict, what="gated", where=f"transaction {free}", given=True):
        root.begin("photos", txn=free, gated=True)
    assert not load_state(dump_state(root.state)).txns[free].gated


def test_log_without_gates_has_the_bytes_it_had(root):
    txn = root.begin("photos", txn="t")
    root.publish("photos", write_parts(root, txn))
    assert all(b"gated" not in root.store.get(info.key).data for info in root.store.list("log/"))
    assert b"gated" not in dump_state(root.state)
    assert b"verdict" not in root.store.get("log/000000000002.json").data


def test_bytes_of_it():
    """What other tools read, and other releases of this one."""
    begun = seal(1, "", "n", 5, decide_begin(State(), "t", "d", None, gated=True))
    rest = b'"dataset":"d","format":1,"kind":"gated","n":1,"nonce":"n","parent":null,"prev":"","txn":"t"}'
    checksum = hashlib.sha256(b'{"at_us":5,' + rest).hexdigest().encode()
    assert begun.data == b'{"at_us":5,"checksum":"' + checksum + b'",' + rest
    shard = ShardFile(
        part="t-p",
        group="g",
        path="data/t/p.tar",
        nbytes=1,
        sha256="00",
        n_rows=2,
        index_path="data/t/p.parquet",
        index_nbytes=3,
        index_crc32c=4,
        index_footer_crc32c=5,
        field_nbytes={"cls": 1},
    )
    part = loader.Part(id="t-p", txn="t", n_rows=2, shards=(shard,), samples=None)
    told = (
        b'[[{"id":"t-p","n_rows":2,"samples":null,"shards":[{"field_nbytes":{"cls":1},"group":"g","index_crc32c":4,'
        b'"index_footer_crc32c":5,"index_nbytes":3,"index_path":"data/t/p.parquet","n_rows":2,"nbytes":1,"part":"t-p",'
        b'"path":"data/t/p.tar","sha256":"00"}],"txn":"t"}],{"a":"x"},{"b":"y"}]'
    )
    assert publish_digest([part], {"a": "x"}, {"b": "y"}) == hashlib.sha256(told).hexdigest()
