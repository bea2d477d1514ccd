"""Annotations, publishes and retirements at once: none is lost, and a conflict is refused."""

import pytest

import loader
from loader.errors import Conflict
from tests.dataset.labels.annotated import column, statistics, write
from tests.refusals import refusal


def test_two_people_annotate_the_same_value(label_root):
    """The second has not seen the first's: it is refused, and nothing is lost."""
    other = loader.Root(label_root.url)
    other.annotate("d@1", "theirs", {"k1": {"label": "b"}}, author="ben")
    with refusal(Conflict, what="label", where="d@2", given="a"):
        label_root.annotate("d@1", "ours", {"k1": {"label": "c"}, "k2": {"label": "c"}}, author="ann")
    assert column(label_root.open("d"), "label")["k1"] == "b"
    version = label_root.annotate("d@2", "ours", {"k1": {"label": "c"}}, author="ann").version
    assert column(version, "label")["k1"] == "c"


def test_two_people_annotate_other_samples_or_columns(label_root):
    other = loader.Root(label_root.url)
    other.annotate("d@1", "theirs", {"k1": {"label": "b", "score": 1.5}}, author="ben")
    other.annotate("d@1", "more", {"k3": {"v": 1}}, author="ben")
    version = label_root.annotate(
        "d@1", "ours", {"k2": {"label": "c", "score": 2.5}, "k1": {"w": 7}}, author="ann"
    ).version
    assert version.number == 4
    assert [column(version, "label")[f"k{i}"] for i in (1, 2, 3)] == ["b", "c", "a"]
    assert [column(version, "score")[f"k{i}"] for i in (1, 2, 3)] == [1.5, 2.5, None]
    assert column(version, "w")["k1"] == 7
    found = statistics(version)
    assert found["label"]["categories"] == {"a": 8, "b": 1, "c": 1}
    assert (found["score"]["n"], found["score"]["min"], found["score"]["max"]) == (2, 1.5, 2.5)
    assert (found["w"]["n"], found["w"]["nulls"], found["w"]["mean"]) == (10, 0, (45 + 6) / 10)


def test_same_value_twice_is_no_conflict(label_root):
    other = loader.Root(label_root.url)
    other.annotate("d@1", "theirs", {"k1": {"label": "b", "score": float("nan")}}, author="ben")
    version = label_root.annotate("d@1", "ours", {"k2": {"label": "b"}}, author="ann").version
    assert statistics(version)["label"]["categories"] == {"a": 8, "b": 2}
    with refusal(Conflict, what="score", where="d@3"):
        label_root.annotate("d@1", "ours", {"k1": {"score": float("nan")}}, author="ann")


def test_parts_and_exclusions_come_meanwhile(label_root):
    """The rows are read while somebody publishes: what was joined is laid on all of it."""
    other = loader.Root(label_root.url)

    def rows():
        yield {"key": "k1", "label": "b", "w": 100}
        write(other, [10, 11])
        other.exclude("d", ["k2"], reason="x")
        other.annotate("d", "theirs", {"k10": {"label": "z"}}, author="ben")
        yield {"key": "k2", "label": "c"}

    version = label_root.annotate("d@1", "ours", rows(), author="ann").version
    assert version.number == 5
    labels = column(version, "label")
    assert "k2" not in labels
    assert {key: value for key, value in labels.items() if value != "a"} == {"k1": "b", "k10": "z"}
    # Statistics do not take exclusions away.
    assert statistics(version)["label"]["categories"] == {"a": 9, "b": 1, "c": 1, "z": 1}
    assert (statistics(version)["w"]["n"], statistics(version)["w"]["max"]) == (12, 100.0)


@pytest.mark.parametrize("published", [False, True])
def test_version_with_the_samples_was_retired_meanwhile(label_root, published):
    """What was said of them would lie in a version that has no such part: verify fails, no takedown finds it."""
    with label_root.write("d") as writer:
        writer.add("later", {"cls": 1})
    other = loader.Root(label_root.url)

    def rows():
        yield {"key": "k1", "label": "b"}
        other.retire("d@2", reason="x")
        if published:
            with other.write("d") as writer:
                writer.add("last", {"cls": 1})
        yield {"key": "later", "label": "c"}

    with refusal(Conflict, what="part", where="d@3" if published else "d@1"):
        label_root.annotate("d@2", "ours", rows(), author="ann")
    label_root.annotate("d", "ours", {"k1": {"label": "b"}}, author="ann")


def test_what_somebody_else_said_of_a_column_was_retired_meanwhile(label_root):
    other = loader.Root(label_root.url)
    old = label_root.annotate("d", "new", {"k1": {"colour": "red"}}, author="ann").version

    def rows():
        yield {"key": "k1", "colour": "blue"}
        other.retire(old.name, reason="x")
        other.exclude("d", ["k9"], reason="y")

    with refusal(Conflict, what="colour", where="d@3", given="red"):
        label_root.annotate(old.name, "ours", rows(), author="ann")


def test_every_version_was_retired_meanwhile(label_root):
    other = loader.Root(label_root.url)

    def rows():
        other.retire("d@1", reason="x")
        yield {"key": "k1", "label": "b"}

    with refusal(Conflict, what="parent", given="retired"):
        label_root.annotate("d@1", "ours", rows(), author="ann")
