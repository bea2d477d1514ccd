"""Takedowns in the log: how they name samples, and that every commit after one applies it."""

import hashlib
import io
import string
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.log.denies import DenyList, Target, keyed_hash, placeholder
from loader.dataset.log.log import Log
from loader.dataset.names import check_key, member_name
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.shards.tar_headers import member_header
from loader.errors import Conflict, Denied, InvalidKey, InvalidName, SampleNotFound
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal

ALICE = Target(kind="subject", value="alice")


def deny(root, *targets, reason="ticket 12", by="privacy desk"):
    return root.log.deny(targets or (ALICE,), reason, by)


def write(root, dataset="d", part_samples=2, **subjects):
    """A version with a sample per name -> subject; its bytes and its columns name both."""
    with root.write(dataset, part_samples=part_samples) as writer:
        for key, subject in subjects.items():
            writer.add(
                key,
                {"txt": f"MARK-{subject}-{key}", "cls": 1},
                {"who": f"name of {subject}", "n": len(key)},
                {"subject": subject, "raw_key": f"{key}.raw", "source_key": f"{key}/source"},
            )
    return writer.version


def texts(version, fields=("txt",)):
    """key -> the fields' bytes, of every live sample."""
    where = np.arange(len(version))
    found = read_fields(version.store, version.address(where, fields))
    return {key: tuple(map(one.get, fields)) for key, one in zip(version.keys(where), found, strict=True)}


def everything(version):
    """All bytes that a version is made of, with every Parquet table's cells as text."""
    found = []
    names = [
        file["path"]
        for kind in ("samples", "stats", "exclusions", "shards")
        for file in version.manifest[kind]
    ]
    shards = version.parts.shard_rows().to_pylist()
    names += [shard["index_path"] for shard in shards]
    for name in names:
        table = pq.read_table(io.BytesIO(version.store.get(name).data))
        found.append(str(table.to_pydict()).encode())
    found += [version.store.get(shard["path"]).data for shard in shards]
    return b"\n".join(found)


def sound(root, ref):
    report = verify(root, ref, full=True)
    assert report.problems == []


def test_what_an_entry_says_is_no_plain_text(root):
    write(root, a="alice")
    one = deny(root, ALICE, Target(kind="sample", dataset="d", value="a/secret"))
    data = root.store.get(f"log/{one.n:012d}.json").data
    assert b"alice" not in data
    assert b"secret" not in data
    assert len(bytes.fromhex(one.salt)) == 16
    assert sorted(one.hashes) == list(one.hashes)
    assert keyed_hash(one.salt, "subject", "", "alice") in one.hashes
    assert (one.scope, one.reason, one.by) == ("sample subject", "ticket 12", "privacy desk")


def test_denying_again_is_the_same_entry_and_salts_are_shared(root):
    write(root, a="alice")
    first = deny(root)
    assert deny(root) == first
    second = deny(root, Target(kind="subject", value="bob"))
    assert second.n == first.n + 1
    assert second.salt == first.salt
    assert Log(root.store).state.denies == root.state.denies == (first, second)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (
            lambda: Target(kind="person", value="x"),
            {"what": "kind", "given": "person", "accepted": ["raw", "sample", "subject"]},
        ),
        (
            lambda: Target(kind="subject", value=""),
            {"what": "subject to take down", "given": "", "accepted": "text that is not blank"},
        ),
        (lambda: Target(kind="sample", value="k"), {"what": "dataset", "given": ""}),
    ],
)
def test_bad_targets(make, fault):
    with refusal(InvalidName, **fault):
        make()


def test_reasons_that_give_it_away(root):
    write(root, a="alice")
    for said in ({"reason": "alice asked"}, {"by": "alice"}, {"reason": ""}, {"by": ""}):
        with pytest.raises(InvalidName):
            deny(root, **said)
    with pytest.raises(InvalidName):
        root.log.deny([], "ticket 1", "desk")
    assert root.state.denies == ()


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.data())
def test_rows_are_found_by_what_was_hashed(data):
    """The list finds what a plain comparison finds, in any column, of any salt, of this dataset or of all."""
    from loader.dataset.log.state import Deny

    words = st.sampled_from(["a", "b", "c/d", "é", ""])
    columns = ["key", "source_key", "raw_key", "raw_uri", "raw_sha256", "subject"]
    rows = data.draw(st.lists(st.fixed_dictionaries({c: st.none() | words for c in columns}), max_size=5))
    kinds = {"raw": columns[2:5], "sample": columns[:2], "subject": columns[5:]}
    targets = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(sorted(kinds)), st.sampled_from(["d", "other", ""]), words.filter(bool)
            ),
            max_size=4,
        )
    )
    denies = [
        Deny(n=n, hashes=(keyed_hash("ab" * (n % 2), kind, of, value),), scope=kind, salt="ab" * (n % 2))
        for n, (kind, of, value) in enumerate(targets, 1)
    ]
    expected = []
    for row in rows:
        hits = [
            n
            for n, (kind, of, value) in enumerate(targets, 1)
            if of in ("", "d") and value in [row[c] for c in kinds[kind]]
        ]
        expected.append(bool(hits))
    table = pa.Table.from_pylist(rows, pa.schema([(c, pa.string()) for c in columns]))
    found = DenyList(denies, "d").denying_entries(table).tolist()
    assert [n > 0 for n in found] == expected
    for n, row in zip(found, rows, strict=True):
        if n:
            kind, of, value = targets[n - 1]
            assert of in ("", "d")
            assert value in [row[c] for c in kinds[kind]]


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.text(max_size=40), st.sampled_from(["jpg", "a.very.long_field.json"]), st.integers(0, 40))
def test_placeholder_takes_the_place_of_its_key(text, field, depth):
    key = "/".join([*["deep"] * (depth % 4), loader.escape_key(text)])
    try:
        member_name(check_key(key), field)
    except InvalidKey:  # not a key of any shard
        return
    made = placeholder("ab", key, {key})
    assert check_key(made) == made
    assert made == placeholder("ab", key, {key})
    assert made != key or len(key.encode()) == key.count("/")
    assert [i for i, c in enumerate(made.encode()) if c == 47] == [
        i for i, c in enumerate(key.encode()) if c == 47
    ]
    assert len(member_header(member_name(made, field), 7)) == len(member_header(member_name(key, field), 7))


def test_placeholders_of_short_keys_differ():
    keys = [chr(ord("a") + i) for i in range(26)]
    taken, made = set(keys), []
    for key in keys[:10]:
        made.append(placeholder("ab", key, taken))
        taken.add(made[-1])
    assert len({*made, *keys}) == 36


def test_placeholders_where_no_letter_is_free():
    """Other characters stand in, each a key; and where none is left nothing is published under a key that is there."""
    taken = set(string.ascii_lowercase + string.digits)
    made = []
    for _ in range(30):
        made.append(placeholder("ab", "a", {*taken, *made}))
    assert len({*made, *taken}) == 66
    assert [check_key(key) for key in made] == made
    with refusal(InvalidKey, what="key", given="a"):
        placeholder("ab", "a", set(map(chr, range(128))))


@pytest.mark.parametrize("target", [{"value": "\udcff"}, {"value": "a", "dataset": "\udcff"}])
def test_target_that_is_no_text(target):
    what = "dataset" if "dataset" in target else "subject to take down"
    with refusal(InvalidName, what=what, given="\udcff", accepted="UTF-8 text"):
        Target(kind="subject", **target)


@pytest.mark.parametrize(
    "target",
    [
        ALICE,
        Target(kind="subject", value="alice", dataset="d"),
        Target(kind="sample", value="b", dataset="d"),
        Target(kind="sample", value="b/source", dataset="d"),
        Target(kind="raw", value="b.raw"),
    ],
    ids=lambda target: f"{target.kind}-{target.value}-{target.dataset}",
)
def test_new_samples_that_are_denied_are_dropped(root, target):
    write(root, a="bob")
    one = deny(root, target)
    version = write(root, b="alice", c="carol", e="dave")
    assert sorted(texts(version)) == ["a", "c", "e"]
    assert version.manifest["denies"] == one.n
    assert version.manifest["producer"]["taken_down"] == 1
    assert b"alice" not in everything(version)
    sound(root, "d")
    assert texts(version)["c"] == (b"MARK-carol-c",)
    (reason,) = {
        row["reason"]
        for file in version.manifest["exclusions"]
        for row in pq.read_table(io.BytesIO(root.store.get(file["path"]).data)).to_pylist()
    }
    assert reason == f"taken down (log entry {one.n})"


def test_deny_of_another_dataset_is_none(root):
    write(root, a="bob")
    deny(root, Target(kind="subject", value="alice", dataset="other"))
    assert sorted(texts(write(root, b="alice"))) == ["a", "b"]


def test_what_is_not_denied_is_the_same_bytes(root):
    plain = write(loader.Root(f"{root.url}-plain"), b="alice", c="carol", e="dave", part_samples=None)
    write(root, "other", z="zoe")
    deny(root)
    version = write(root, b="alice", c="carol", e="dave", part_samples=None)
    (was,), (now,) = (one.parts.shard_rows().to_pylist() for one in (plain, version))
    assert was["nbytes"] == now["nbytes"]
    before, after = plain.store.get(was["path"]).data, root.store.get(now["path"]).data
    assert hashlib.sha256(after).hexdigest() == now["sha256"]
    with tarfile.open(fileobj=io.BytesIO(before)) as old, tarfile.open(fileobj=io.BytesIO(after)) as new:
        for mine, other in zip(old.getmembers(), new.getmembers(), strict=True):
            assert (mine.offset_data, mine.size) == (other.offset_data, other.size)
            data = new.extractfile(other).read()
            if mine.name.startswith("b."):
                assert (data, len(other.name)) == (bytes(mine.size), len(mine.name))
                assert other.name != mine.name
            else:
                assert (other.name, data) == (mine.name, old.extractfile(mine).read())


def test_statistics_are_of_what_is_left(root):
    write(root, a="bob")
    deny(root)
    version = write(root, b="alice", long_key="carol")
    rows = pq.read_table(io.BytesIO(root.store.get(version.manifest["stats"][-1]["path"]).data)).to_pylist()
    n = {row["column"]: row for row in rows}["n"]
    assert (n["n"], n["nulls"], n["sum"]) == (2, 1, 8.0)
    assert dict({row["column"]: row for row in rows}["who"]["categories"]) == {"name of carol": 1}


def test_parents_samples_are_left_out_by_the_next_commit_of_any_kind(root):
    write(root, a="alice", b="bob", c="carol", e="dave")
    one = deny(root)
    version = write(root, f="frank")
    assert sorted(texts(version)) == ["b", "c", "e", "f"]
    assert version.manifest["n_live"] == 4
    again = root.exclude("d", ["b"], reason="blurred")
    assert sorted(texts(again)) == ["c", "e", "f"]
    deny(root, Target(kind="sample", dataset="d", value="c"))
    both = root.exclude("d", ["c"], reason="blurred")  # left out once, whoever asks
    assert sorted(texts(both)) == ["e", "f"]
    deny(root, Target(kind="subject", value="dave"))
    grown = root.add_group("d", "more", {"up.txt": lambda sample: sample["txt"].upper()})
    assert sorted(texts(grown)) == ["f"]
    assert grown.manifest["denies"] == root.state.last_deny > one.n
    for ref in ("d@2", "d@3", "d@4", "d@5"):
        sound(root, ref)


def test_superseding_a_denied_sample_counts_it_once(root):
    write(root, a="alice", b="bob")
    deny(root)
    txn = root.begin("d")
    better = loader.write_part(root, txn, [("z", {"txt": "new", "cls": 1})])
    version = root.publish("d", [better], supersede={"a": "better"})
    assert sorted(texts(version)) == ["b", "z"]
    sound(root, "d")


def test_excluded_and_denied_at_once(root):
    write(root, b="bob")
    deny(root)
    txn = root.begin("d")
    samples = [
        (key, {"txt": key, "cls": 1}, {}, {"subject": who}) for key, who in (("x", "alice"), ("y", "yan"))
    ]
    version = root.publish(
        "d", [loader.write_part(root, txn, samples)], exclude={"x": "too dark", "y": "too dark"}
    )
    assert sorted(texts(version)) == ["b"]
    assert "taken_down" not in version.manifest["producer"]
    assert b"alice" not in everything(version)
    sound(root, "d")


def test_nothing_left_is_denied(root):
    write(root, "other", z="zoe")
    deny(root)
    with refusal(Denied, what="takedowns", where="d", given=[3]):
        write(root, a="alice")
    assert "d" not in root.datasets()


def test_deny_that_comes_first_is_applied_to_parts(root, interrupt_commit):
    write(root, a="bob")
    mine = interrupt_commit(root, lambda: deny(root))
    version = write(mine, b="alice", c="carol")
    assert sorted(texts(version)) == ["a", "c"]
    assert b"alice" not in everything(version)
    sound(root, "d")


def test_deny_that_comes_first_is_applied_to_a_group(root, interrupt_commit):
    write(root, a="alice", b="bob", c="carol", e="dave")
    mine = interrupt_commit(root, lambda: deny(root))
    version = mine.add_group("d", "more", {"up.txt": lambda sample: "UP-" + sample["txt"]})
    assert sorted(texts(version, ("up.txt",))) == ["b", "c", "e"]
    more = [shard for shard in version.parts.shard_rows().to_pylist() if shard["group"] == "more"]
    held = b"".join(root.store.get(shard["path"]).data for shard in more)
    assert b"UP-MARK-alice" not in held
    assert b"UP-MARK-bob-b" in held
    sound(root, "d")


def test_deny_that_comes_first_is_applied_to_exclusions(root, interrupt_commit):
    write(root, a="alice", b="bob", c="carol")
    mine = interrupt_commit(root, lambda: deny(root))
    version = mine.exclude("d", ["c"], reason="blurred")
    assert sorted(texts(version)) == ["b"]
    sound(root, "d")


def test_group_beside_an_exclusion_keeps_nothing_of_it(root, interrupt_commit):
    write(root, a="alice", b="bob", c="carol")
    deny(root, Target(kind="subject", value="nobody"))
    mine = interrupt_commit(root, lambda: root.exclude("d", ["a"], reason="blurred"))
    version = mine.add_group("d", "more", {"up.txt": lambda sample: "UP-" + sample["txt"]})
    assert b"UP-MARK-alice" not in everything(version)
    sound(root, "d")


def test_old_rules_hold_past_a_deny(root):
    write(root, a="alice", b="bob")
    deny(root)
    with pytest.raises(SampleNotFound):
        root.exclude("d", ["nobody"], reason="x")
    write(root, c="carol")
    with pytest.raises((Conflict, SampleNotFound)):
        root.exclude("d", ["a"], reason="x")
