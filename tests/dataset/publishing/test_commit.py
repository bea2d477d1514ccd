"""Parts of many workers become one version, once, on the newest version there is."""

import numpy as np
import pytest

import loader
from loader.dataset.publishing.publication_gate import NewKeys
from loader.dataset.shards.part import Part
from loader.dataset.writing.run_samples import RunKeys
from loader.errors import (
    Conflict,
    Corrupt,
    DuplicateKey,
    EmptyVersion,
    Fenced,
    FieldMismatch,
    InvalidSample,
    TransactionNotFound,
    VersionRetired,
)
from tests.refusals import refusal


def part(root, txn, *keys, name=None, **options):
    return loader.write_part(root, txn, [(key, {"cls": 1}) for key in keys], name=name, **options)


def version(root, *keys):
    return root.publish("d", [part(root, root.begin("d"), *keys)])


def keys(found):
    return sorted(found.keys(np.arange(len(found))))


def test_parts_of_many_workers(root, properties):
    txn = root.begin("d")
    parts = [part(root, txn, f"a{i}", f"b{i}") for i in range(5)]
    sent = [Part.from_json(one.to_json()) for one in parts]
    assert sent == parts
    found = root.publish("d", sent[::-1])
    assert len(found) == 10
    assert found.parts.ids.to_pylist() == [one.id for one in parts[::-1]]
    assert set(properties.content(found)) == {f"{c}{i}" for c in "ab" for i in range(5)}


def test_publishing_a_transaction_twice_gives_its_version(root):
    txn = root.begin("d")
    parts = [part(root, txn, "a")]
    first = root.publish("d", parts)
    version(root, "b")
    again = root.publish("d", parts)
    other_attempt = root.publish("d", [part(root, txn, "a")])
    assert (first.id, first.number) == (again.id, 1) == (other_attempt.id, 1)
    assert len(root.versions("d")) == 2


def test_attempt_that_lost_gives_the_winners_version(root, properties):
    """Two publishers of one transaction: the second finds it committed when it appends."""
    txn = root.begin("d")
    mine, theirs = part(root, txn, "a"), part(root, txn, "a")
    found = properties.overtaken(root, mine, lambda: root.publish("d", [theirs]))
    assert found.number == 1
    assert found.parts.ids.to_pylist() == [theirs.id]


def test_txn_of_the_callers_name_may_be_begun_again(root):
    assert root.begin("d", txn="step-7") == root.begin("d", txn="step-7") == "step-7"
    with refusal(Conflict, what="dataset", where="transaction step-7", given="e", accepted="d"):
        root.begin("e", txn="step-7")


def test_aborted_transaction_is_fenced(root):
    txn = root.begin("d")
    parts = [part(root, txn, "a")]
    root.abort(txn, "the collector thought it dead")
    with refusal(Fenced, what="transaction", where="d", given=txn):
        root.publish("d", parts)
    with pytest.raises(Fenced):
        root.begin("d", txn=txn)
    assert root.datasets() == []


def test_aborted_between_upload_and_commit(root, properties):
    txn = root.begin("d")
    with pytest.raises(Fenced):
        properties.overtaken(root, part(root, txn, "a"), lambda: root.abort(txn, "x"))
    assert root.datasets() == []


def test_two_attempts_of_one_part(root):
    txn = root.begin("d")
    with refusal(Conflict, what="part", given=f"{txn}-00001", accepted="each part once"):
        root.publish("d", [part(root, txn, "a", name="00001"), part(root, txn, "a", name="00001")])


def test_parts_of_two_transactions(root):
    with refusal(InvalidSample, what="transactions", given=2, accepted=1):
        root.publish("d", [part(root, root.begin("d"), "a"), part(root, root.begin("d"), "b")])


def test_no_parts(root):
    root.create()
    with refusal(EmptyVersion, what="parts", given=0):
        root.publish("d", [])


def test_transaction_of_another_dataset(root):
    txn = root.begin("d")
    with refusal(Conflict, what="dataset", given="e", accepted="d"):
        root.publish("e", [part(root, txn, "a")])


def test_transaction_that_was_never_begun(root):
    root.create()
    with refusal(TransactionNotFound, what="transaction", given="nope"):
        root.publish("d", [part(root, "nope", "a")])


@pytest.mark.parametrize(
    "body", [{}, {"id": "x"}, {"id": 1, "txn": 1, "n_rows": 1, "shards": [{}], "samples": None}]
)
def test_what_is_not_a_part(body):
    with pytest.raises(InvalidSample, match=r"not a part: .*Part\.to_json"):
        Part.from_json(body)


def test_parts_whose_fields_differ(root):
    txn = root.begin("d")
    other = loader.write_part(root, txn, [("b", {"txt": "x"})])
    with refusal(FieldMismatch, what="fields", where=f"part {other.id}", given=["txt"], accepted=["cls"]):
        root.publish("d", [part(root, txn, "a"), other])


def test_parts_of_different_groups_are_partial_coverage(root, properties):
    txn = root.begin("d")
    other = loader.write_part(root, txn, [("b", {"txt": "x"})], group="captions")
    found = root.publish("d", [part(root, txn, "a"), other])
    assert properties.content(found) == {"a": {"cls": b"1"}, "b": {"txt": b"x"}}


def test_parent_is_checked_not_imposed(root):
    version(root, "a")
    version(root, "b")
    txn = root.begin("d", parent="d@1")
    found = root.publish("d", [part(root, txn, "c")], parent="d@1")
    assert keys(found) == ["a", "b", "c"]
    root.retire("d@1", reason="bad licence")
    with refusal(VersionRetired, what="d@1", given="bad licence"):
        root.begin("d", parent="d@1")
    txn = root.begin("d")
    with refusal(VersionRetired, what="d@1", given="bad licence"):
        root.publish("d", [part(root, txn, "e")], parent="d@1")
    with root.write("other") as writer:
        writer.add("x", {"cls": 1})
    with refusal(Conflict, what="parent", given="other@1", accepted="d"):
        root.publish("d", [part(root, txn, "e")], parent="other@1")
    with refusal(Conflict, what="parent", given="other@1", accepted="d"):
        root.begin("d", parent="other@1")


def test_late_publisher_is_laid_on_the_newest(properties):
    """A publisher that was overtaken lays its parts on the version that overtook it: nothing is lost."""
    root = loader.Root(properties.fresh_url())
    parts = {}
    for name in ("a", "b", "c"):
        txn = root.begin("d")
        parts[name] = loader.write_part(root, txn, [(f"{name}{i}", {"cls": i}) for i in range(3)])
    properties.overtaken(root, parts["a"], lambda: root.publish("d", [parts["b"]]))
    root.publish("d", [parts["c"]])
    assert [record.number for record in root.versions("d")] == [1, 2, 3]
    for number, names in ((1, "b"), (2, "ba"), (3, "bac")):
        expected = {f"{name}{i}" for name in names for i in range(3)}
        assert set(properties.content(root.open(f"d@{number}"))) == expected


def test_key_comes_once(properties):
    """A key that is live in the newest version is refused, also when it came in by overtaking."""
    root = loader.Root(properties.fresh_url())
    with root.write("d") as writer:
        writer.add("k", {"cls": 1})
    properties.catch_error(DuplicateKey, lambda: properties.one(root, "k"))
    txn = root.begin("d")
    mine = loader.write_part(root, txn, [("new", {"cls": 1})])
    properties.catch_error(
        DuplicateKey, lambda: properties.overtaken(root, mine, lambda: properties.one(root, "new"))
    )
    assert [record.number for record in root.versions("d")] == [1, 2]


def test_excluded_keys_are_gone(properties):
    """A version with exclusions has the other samples, at ordinals without gaps."""
    root = loader.Root(properties.fresh_url())
    with root.write("d", part_samples=3) as writer:
        for i in range(10):
            writer.add(f"k{i}", {"cls": i})
    version = root.exclude("d@1", ["k3", "k7"], reason="test")
    assert properties.content(version) == {f"k{i}": {"cls": b"%d" % i} for i in range(10) if i not in (3, 7)}


def test_keys_of_excluded_samples_may_come_again(root, properties):
    version(root, "a", "b")
    root.exclude("d", ["a"], reason="blurred")
    found = root.publish("d", [part(root, root.begin("d"), "a")])
    assert keys(found) == ["a", "b"]
    assert len(properties.content(found)) == 2


def test_retirement_that_brings_back_an_excluded_sample(root):
    """The check of keys is asked again on each version it is laid on: v2 excludes 'a', then v2 is retired."""
    first = version(root, "a", "b")
    second = root.exclude("d", ["a"], reason="blurred")
    check = NewKeys(root.store, RunKeys.of(["a"]))
    check(second)
    with refusal(DuplicateKey, what="key", where="d@1", given="a"):
        check(first)


def test_retirement_between_check_and_commit(root, properties):
    version(root, "a", "b")
    root.exclude("d", ["a"], reason="blurred")
    mine = part(root, root.begin("d"), "a")
    with refusal(DuplicateKey, what="key", where="d@1", given="a"):
        properties.overtaken(root, mine, lambda: root.retire("d@2", reason="x"))


def test_column_that_changed_type_meanwhile(root, properties):
    txn = root.begin("d")
    mine = loader.write_part(root, txn, [("a", {"cls": 1}, {"w": 3})])

    def overtake():
        with root.write("d") as writer:
            writer.add("b", {"cls": 1}, metadata={"w": 1.5})

    with refusal(FieldMismatch, what="type", where="column 'w'", given="int64", accepted="double"):
        properties.overtaken(root, mine, overtake)
    # The transaction is still open: published again, the column is fitted to what is there now.
    assert len(root.publish("d", [mine])) == 2


def test_shards_of_a_part_that_disagree(root):
    from dataclasses import replace

    txn = root.begin("d")
    one = part(root, txn, "a", "b")
    with refusal(FieldMismatch, what="rows", where=one.id, given=[2, 2], accepted=3):
        root.publish("d", [replace(one, n_rows=3)])
    short = replace(one.shards[0], n_rows=1)
    with refusal(FieldMismatch, what="rows", where=one.id, given=[2, 1], accepted=2):
        root.publish("d", [replace(one, shards=[short])])
    samples = replace(one.samples, sha256="0" * 64)
    with refusal(Corrupt, what="sha256", where=f"{root.url}/{samples.path}"):
        root.publish("d", [replace(one, samples=samples)])
    with refusal(InvalidSample, what="samples table", where=f"part {one.id}"):
        root.publish("d", [replace(one, samples=None)])


def test_datasets_do_not_see_each_other(root):
    version(root, "a")
    with root.write("e") as writer:
        writer.add("a", {"txt": "x"}, metadata={"cls": "text"})
    assert (root.datasets(), writer.version.name, len(writer.version)) == (["d", "e"], "e@1", 1)
