"""Columns, groups and lineage of a version, as its tabs and `penstock show` name them."""

import json

import pytest

import loader
from loader.errors import Corrupt
from penstock.view.inspect.version_contents import version_contents
from penstock.view.inspect.version_lineage import MOST_VERSIONS, version_lineage
from tests.refusals import refusal
from tests.view.test_costs import Counted


@pytest.fixture
def root(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        root.create()
        yield root


def publish(root, number, checks=None, approval=None):
    """A version with a sample more; its gate's record has these checks."""
    producer = {"dagster_run_id": f"run {number}", "batch": f"batch-{number}"}
    if checks is not None:
        path = f"stages/d/version/{number}/000000000001.json"
        producer |= {
            "audit_record": path,
            "gate": {"checks": {"blank": "passed"}, "report": "gates/d/1.html"},
        }
        body = {"body": {"checks": checks, "approval": approval or {}}}
        root.store.put_if_absent(path, json.dumps(body).encode())
    with root.write("d", producer=producer) as writer:
        for row in range(3):
            metadata = {"label": f"l{row % 2}"}
            if row:
                metadata["size"] = row / 2
            writer.add(f"k{number}-{row}", {"cls": row, "txt": "x" * 5}, metadata=metadata)
    return writer.version


def test_columns_agree_with_polars(root):
    for number in (1, 2):
        version = publish(root, number)
    contents = version_contents(version)
    frame = version.samples().select("label", "size").collect()
    label, size = (one for one in contents.columns if one.name in ("label", "size"))
    assert (label.n_rows, label.nulls, label.n_values) == (len(frame), 0, frame["label"].n_unique())
    assert dict(label.commonest) == dict(frame["label"].value_counts().iter_rows())
    assert (size.n_rows, size.nulls) == (frame["size"].count(), frame["size"].null_count())
    assert (size.low, size.mean, size.high) == (
        frame["size"].min(),
        frame["size"].mean(),
        frame["size"].max(),
    )
    assert [one.name for one in contents.columns] == sorted(one.name for one in contents.columns)


def test_groups_have_the_bytes_of_the_manifest(root):
    contents = version_contents(publish(root, 1))
    fields = {field: nbytes for group in contents.groups for field, nbytes in group.fields.items()}
    assert fields.keys() == {"cls", "txt"}
    assert fields["txt"] >= 15
    assert [group.n_samples for group in contents.groups] == [3] * len(contents.groups)


def test_lineage_names_the_newest_versions_first(root):
    checks = [
        {"name": "blank", "passed": True, "explanation": "3 objects: nothing stands out"},
        {"name": "drift", "passed": False, "explanation": "luma <b>moved</b>"},
    ]
    approval = {"by": "ann", "reason": "a new camera", "checks": ["drift"]}
    publish(root, 1)
    lineage = version_lineage(root, publish(root, 2, checks, approval))
    assert [(one.number, one.n_samples, one.batch, one.run_id, one.gate) for one in lineage.versions] == [
        (2, 6, "batch-2", "run 2", "passed"),
        (1, 3, "batch-1", "run 1", ""),
    ]
    assert [(one.name, one.passed, one.approved_by) for one in lineage.checks] == [
        ("blank", True, ""),
        ("drift", False, "ann: a new camera"),
    ]
    assert (lineage.n_versions, lineage.report) == (2, "gates/d/1.html")


def test_lineage_costs_the_same_for_any_number_of_earlier_versions(root):
    """A manifest and up to two records of each of the newest versions."""
    costs = []
    for number in range(1, 3 * MOST_VERSIONS):
        version = publish(root, number, [])
        if number >= 2 * MOST_VERSIONS:
            with loader.Root(root.url) as reader:
                counted = Counted(reader.store)
                reader._use(counted)
                opened = reader.open(version.name)
                counted.requests.clear()
                lineage = version_lineage(reader, opened)
            costs.append(counted.requests.total())
            assert len(lineage.versions) == MOST_VERSIONS
            assert lineage.n_versions == number
    assert set(costs) == {2 * MOST_VERSIONS}


@pytest.mark.parametrize("checks", [5, [{"passed": True}], ["blank"]])
def test_damaged_record_of_a_gate_is_named(root, checks):
    with refusal(Corrupt, what="stage records", where="d@1"):
        version_lineage(root, publish(root, 1, checks))
