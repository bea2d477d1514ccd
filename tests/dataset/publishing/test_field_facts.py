"""Facts of fields: told once, kept by every later version, and never changed."""

import itertools

import numpy as np
import pytest

import loader
from loader.errors import FieldMismatch, FieldNotFound, InvalidSample
from tests.refusals import refusal

numbers = itertools.count()
TOLD = {
    "tokens.npy": {"tokenizer": "tekken-240911", "tokenizer_sha256": "ab" * 32},
    "cls": {"labels": ["cat", "dog"], "source": {"page": 7}},
}


@pytest.fixture
def root():
    with loader.Root(f"memory://field-facts-{next(numbers)}") as made:
        yield made


def add(root, first, facts=None, dataset="d"):
    with root.write(dataset, facts=facts) as writer:
        for i in range(first, first + 3):
            writer.add(f"k{i}", {"tokens.npy": np.arange(4), "cls": i % 2})
    return writer.version


def test_facts_are_kept_by_every_later_version(root):
    assert add(root, 0, TOLD).facts == TOLD
    assert add(root, 3).facts == TOLD
    compute = {"norm.npy": lambda sample: np.float32([sample["cls"]])}
    told = {"norm.npy": {"unit": "dB", "dims": ["frame"]}}
    assert root.add_group("d", "norms", compute, facts=told).facts == {**TOLD, **told}
    root.annotate("d", "scores", {"k0": {"score": 3}}, author="me")
    last = root.exclude("d", ["k1"], reason="blurred")
    assert last.facts == root.open("d@latest").facts == {**TOLD, **told}
    assert "facts" in last.manifest


def test_version_without_facts_is_what_it_was(root):
    version = add(root, 0)
    assert version.facts == {}
    assert "facts" not in version.manifest


def test_list_may_get_longer_and_nothing_else_changes(root):
    add(root, 0, TOLD)
    longer = {"cls": {"labels": ["cat", "dog", "fox"]}}
    assert add(root, 3, longer).facts["cls"]["labels"] == ["cat", "dog", "fox"]
    assert add(root, 6, {"cls": {"origin": "web"}}).facts["cls"]["origin"] == "web"
    for field, name, value in (
        ("cls", "labels", ["cat", "dog"]),
        ("cls", "labels", ["dog", "cat", "fox"]),
        ("tokens.npy", "tokenizer", "other"),
    ):
        with refusal(FieldMismatch, what=name, where=f"field '{field}'", given=value):
            add(root, 9, {field: {name: value}})
    assert root.open("d@latest").number == 3


def test_facts_that_cannot_be_are_refused(root):
    with refusal(FieldNotFound, what="facts", given="jpg", accepted=["cls", "tokens.npy"]):
        add(root, 0, {"jpg": {"unit": "x"}})
    for wrong in (
        {"cls": {"labels": "cat"}},
        {"cls": {"labels": [1]}},
        {"tokens.npy": {"tokenizer": 7}},
        {"cls": {"mean": 0.5}},
    ):
        with pytest.raises(InvalidSample):
            add(root, 0, wrong)
    assert root.datasets() == []


def test_facts_that_json_cannot_hold_are_named_as_facts(root):
    with refusal(InvalidSample, what="facts", given="{'cls': {'origin': b'web'}}"):
        add(root, 0, {"cls": {"origin": b"web"}})


def test_parts_of_workers_are_published_with_facts(root):
    txn = root.begin("d")
    part = loader.write_part(root, txn, [("k0", {"tokens.npy": np.arange(3), "cls": 0})])
    assert root.publish("d", [part], facts=TOLD).facts == TOLD
