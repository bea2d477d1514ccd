"""Facts of a sample beside its row: edits of its columns, and samples that look like it."""

import numpy as np
import pytest

import loader
from penstock.view import sample_relations
from penstock.view.inspect.sample_record import sample_record
from penstock.view.inspect.slot_record import slot_record
from penstock.view.open_data import OpenData
from penstock.view.sample_relations import MAX_DISTANCE, MOST_NEIGHBOURS, phash_neighbours
from penstock.view.web import app
from tests.view.conftest import black, photo, train, write_photos
from tests.view.recipes import plain
from tests.view.test_web import Served

OWN = 0x0123456789ABCDEF


def write(root, hashes, flat=None, dataset="near"):
    """Publish samples with these texts in the column phash."""
    with root.write(dataset) as writer:
        for i, text in enumerate(hashes):
            metadata = {"phash": text} | ({} if flat is None else {"phash_flat": flat[i]})
            writer.add(f"k{i:02d}", {"jpg": photo(i)}, metadata=metadata)
    return root.open(f"{dataset}@1")


def of_key(version, i):
    """The ordinal of the sample k<i>."""
    return version.keys(np.arange(len(version))).index(f"k{i:02d}")


def neighbours(version, i):
    """(key, distance) of the neighbours of the sample k<i>, whose ordinals are those of their keys."""
    found = phash_neighbours(version, of_key(version, i))
    assert version.keys(np.array([one.ordinal for one in found], np.int64)) == [one.key for one in found]
    return [(one.key, one.distance) for one in found]


def flip_bits(n, seed=0):
    """OWN with n of its bits changed."""
    bits = np.random.default_rng(seed).permutation(64)[:n]
    return f"{OWN ^ sum(1 << int(bit) for bit in bits):016x}"


def test_nearest_come_first_and_far_ones_not_at_all(root):
    wanted = [5, 0, MAX_DISTANCE + 1, 1, MAX_DISTANCE, 3]
    version = write(root, [flip_bits(0), *(flip_bits(n, seed=n) for n in wanted)])
    assert neighbours(version, 0) == [("k02", 0), ("k04", 1), ("k06", 3), ("k01", 5), ("k05", MAX_DISTANCE)]
    assert len(sample_record(version, of_key(version, 0)).neighbours) == 5


def test_at_most_twelve_are_listed(root):
    assert len(phash_neighbours(write(root, [flip_bits(0)] * (MOST_NEIGHBOURS + 5)), 7)) == MOST_NEIGHBOURS


def test_of_several_pictures_the_one_that_differs_most_counts(root):
    own, near, far = (f"{flip_bits(0)}-{flip_bits(n)}-{flip_bits(1)}" for n in (0, 4, 30))
    assert neighbours(write(root, [own, far, near, flip_bits(0)]), 0) == [("k02", 4)]


def test_hash_that_says_nothing_has_no_neighbours(root):
    version = write(root, [flip_bits(0)] * 3, flat=[True, False, False])
    assert neighbours(version, 0) == []
    assert neighbours(version, 1) == [("k02", 0)]


@pytest.mark.parametrize("text", ["", "xyz", "0123", "0123456789abcdef-", 7])
def test_another_column_of_the_name_is_no_hash(root, text):
    assert phash_neighbours(write(root, [text] * 3), 0) == ()


def test_without_the_column_there_are_none(root):
    assert phash_neighbours(write_photos(root), 0) == ()


def test_edits_are_told_with_author_and_value_on_the_page(root, tmp_path):
    write(root, [flip_bits(0)] * 3)
    root.annotate("near@1", "review", {"k01": {"label": "cat"}}, author="ann")
    root.annotate("near@2", "review-2", {"k01": {"label": "<b>dog"}, "k02": {"label": "owl"}}, author="bob")
    version = root.open("near@3")
    edited, same = of_key(version, 1), of_key(version, 0)
    record = sample_record(version, edited)
    told = [(one.column, one.value, one.annotation, one.author) for one in record.edits]
    assert told == [("label", "cat", "review", "ann"), ("label", "<b>dog", "review-2", "bob")]
    assert all(one.at.startswith("20") for one in record.edits)
    assert sample_record(version, same).edits == ()
    with Served(tmp_path / "root", recipe=None) as served:
        page = served.get(f"/v/near/3/s/{edited}").text
        thumb = served.get(f"/v/near/3/s/{same}/thumb/jpg")
    assert '>&lt;b&gt;dog</td><td data-name="annotation">review-2</td><td data-name="by">bob</td>' in page
    assert page.count(" bits</span>") == 2
    assert f"/v/near/3/s/{same}/thumb/jpg" in page.replace("../../../../", "/")
    assert thumb.status_code == 200


@pytest.fixture
def near_root(root):
    """photos near@3, of which k01 was edited twice and k02 looks like it, and the run `near` of one step of all."""
    write(root, [flip_bits(30), flip_bits(0), flip_bits(3)])
    root.annotate("near@1", "review", {"k01": {"label": "cat"}}, author="ann")
    root.annotate("near@2", "review-2", {"k01": {"label": "dog"}}, author="bob")
    version = root.open("near@3")
    plan = loader.plan({"near": version.select("jpg")}, seed=4, global_batch=3)
    train(root, plan, "near", recipe=plain, steps=1)
    return plan, version


def test_slot_has_the_edits_and_neighbours_of_its_sample(root, near_root, tmp_path):
    plan, version = near_root
    slot = [key for _, key in plan.batch_ids(0)].index("k01")
    opened = OpenData(root)
    records = [slot_record(opened.training("near"), *opened.slot("near", 0, i)) for i in range(3)]
    opened.close()
    assert [one.value for one in records[slot].edits] == ["cat", "dog"]
    assert [(one.key, one.distance) for one in records[slot].neighbours] == [("k02", 3)]
    assert [one.ordinal for one in records] != [0, 1, 2]
    for record in records:
        sample = sample_record(version, record.ordinal)
        assert (record.edits, record.neighbours) == (sample.edits, sample.neighbours)
    with Served(tmp_path / "root", recipe=None) as served:
        page = served.get(f"/r/near/0/{slot}").text.replace("../../../", "/")
        assert served.get(f"/r/near/0/{slot}.json").json()["neighbours"][0]["key"] == "k02"
    assert '>dog</td><td data-name="annotation">review-2</td><td data-name="by">bob</td>' in page
    assert f'href="/v/near/3/s/{of_key(version, 2)}"' in page


def test_step_leads_from_bad_slots_to_look_alikes(root, tmp_path, monkeypatch):
    """k00 and k01 are one picture of one colour each; only k00 has a hash that says something."""
    with root.write("near") as writer:
        for i in range(6):
            fields = {"jpg": black() if i < 2 else photo(i)}
            text = flip_bits(0) if i in (0, 3, 4) else f"{i}" * 16
            writer.add(f"k{i:02d}", fields, metadata={"phash": text, "phash_flat": i == 1})
    plan = loader.plan({"near": root.open("near@1").select("jpg")}, seed=4, global_batch=6)
    train(root, plan, "near", recipe=plain, steps=1)
    slots = {key: slot for slot, (_, key) in enumerate(plan.batch_ids(0))}
    with Served(tmp_path / "root", recipe=None) as served:
        page = served.get("/r/near/0").text
        shown = served.get(f"/r/near/0/{slots['k00']}").text
        monkeypatch.setattr(app, "MOST_ALIKE", 1)
        bounded = served.get("/r/near/0").text
    rest = bounded.partition("More like this:")[2].partition("</p>")[0]
    assert ("1 other bad slot: open a slot" in rest) == bool(rest)
    assert "other bad slot" not in page
    bad = page.partition("More like this:")[2].partition("</p>")[0]
    assert f"/{slots['k00']}?world=1&amp;rank=0#alike" in bad
    assert bad.count("<a ") == 1
    assert "2 look-alikes" in bad
    assert 'id="alike"' in shown


def test_large_version_is_not_compared(root, monkeypatch):
    version = write(root, [flip_bits(0)] * 3)
    monkeypatch.setattr(sample_relations, "MOST_COMPARED", 2)
    assert phash_neighbours(version, 0) == ()


def test_packed_sequence_has_no_edits_of_the_sample_of_its_number(root):
    with root.write("texts") as writer:
        for i in range(3):
            writer.add(f"k{i}", {"tokens.npy": np.arange(4)}, metadata={"phash": flip_bits(0)})
    root.annotate("texts@1", "review", {f"k{i}": {"label": "cat"} for i in range(3)}, author="ann")
    view, packing = root.open("texts@2").select("tokens.npy"), loader.pack("tokens.npy", length=6)
    plan = loader.plan({"texts": view}, seed=3, global_batch=2, pack=packing)
    train(root, plan, "packed", recipe=plain, steps=1)
    opened = OpenData(root)
    record = slot_record(opened.training("packed"), *opened.slot("packed", 0, 0))
    opened.close()
    assert [row.field for row in record.fields if row.decoded is not None]
    assert (record.edits, record.neighbours, record.trainings) == ((), (), ())
