"""New samples in the place of older ones: one version has neither both nor none of them."""

import polars as pl
import pytest

import loader
from loader.dataset.tables.parquet import TableFile, get_table
from loader.errors import Conflict, DuplicateKey, InvalidSample, SampleNotFound, VersionNotFound
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal


@pytest.fixture
def made(root):
    with root.write("d", part_samples=4) as writer:
        for i in range(10):
            writer.add(f"k{i}", {"cls": i}, metadata={"w": i})
    return root


def part_of(root, *keys):
    return loader.write_part(root, root.begin("d"), [(key, {"cls": 7}, {"w": 70}) for key in keys])


def test_one_version_does_both(made, properties):
    before = len(made.state.versions("d"))
    part = part_of(made, "new", "other")
    version = made.publish(
        "d",
        [part],
        exclude={"other": "too dark"},
        supersede={"k3": "new is sharper", "k7": "new is larger"},
        onto=made.open("d").id,
    )
    assert sorted(properties.content(version)) == sorted(
        {*(f"k{i}" for i in (0, 1, 2, 4, 5, 6, 8, 9)), "new"}
    )
    assert len(made.state.versions("d")) == before + 1
    assert len(made.open("d@1")) == 10  # what was published stays
    assert verify(made, version.name, full=True).problems == []
    tables = [get_table(made.store, TableFile.from_json(file)) for file in version.manifest["exclusions"]]
    assert {reason for table in tables for reason in table["reason"].to_pylist()} == {
        "too dark",
        "new is sharper",
        "new is larger",
    }
    assert made.publish("d", [part], supersede={"k1": "never read"}).id == version.id  # committed once
    assert len(made.open("d").samples().filter(pl.col("key") == "k3").collect()) == 0


def test_older_one_may_come_back_under_its_key(made, properties):
    made.publish("d", [part_of(made, "new")], supersede={"k3": "new is better"})
    version = made.publish("d", [part_of(made, "k3")], supersede={"new": "k3 is better after all"})
    assert len(properties.content(version)) == 10


@pytest.mark.parametrize(
    ("supersede", "error", "fault"),
    [
        ({"nope": "x"}, SampleNotFound, {"what": "key", "where": "d@1", "given": "nope"}),
        ({"k3": "x", "new": "x"}, SampleNotFound, {"what": "key", "where": "d@1", "given": "new"}),
        ({"k3": ""}, InvalidSample, {"what": "reason", "where": "'k3'", "given": ""}),
        ({"k3": 7}, InvalidSample, {"what": "reason", "where": "'k3'", "given": 7}),
    ],
)
def test_refused(made, supersede, error, fault):
    with refusal(error, **fault):
        made.publish("d", [part_of(made, "new")], supersede=supersede)
    assert len(made.versions("d")) == 1


def test_first_version_supersedes_nothing(root):
    part = part_of(root, "new")
    with refusal(VersionNotFound, what="supersede", given="k3"):
        root.publish("d", [part], supersede={"k3": "x"})
    assert len(root.publish("d", [part], onto="")) == 1


def test_key_cannot_supersede_itself(made):
    with pytest.raises(DuplicateKey):
        made.publish("d", [part_of(made, "k3")], supersede={"k3": "x"})


@pytest.fixture
def overtaken(monkeypatch):
    """Somebody else changes the dataset when the change is ready and its log entry is not written."""
    from loader.dataset.publishing import publish as changes

    def by(act):
        real = changes.write_run

        def late(*args):
            change = real(*args)
            monkeypatch.setattr(changes, "write_run", real)
            act()
            return change

        monkeypatch.setattr(changes, "write_run", late)

    return by


def test_somebody_excludes_one_of_them_meanwhile(made, overtaken):
    part = part_of(made, "new")
    overtaken(lambda: loader.Root(made.url).exclude("d", ["k3"], reason="y"))
    with refusal(Conflict, what="exclusion", where="d@2"):
        made.publish("d", [part], supersede={"k3": "new is better", "k5": "new is better"})
    assert len(made.open("d")) == 9


def test_somebody_publishes_meanwhile(made, overtaken, properties):
    """Laid on the newer version, unless it was made for exactly the one before."""
    part, base = part_of(made, "new"), made.open("d").id

    def publish():
        other = loader.Root(made.url)
        other.publish("d", [part_of(other, "theirs")])

    overtaken(publish)
    with refusal(Conflict, what="parts"):
        made.publish("d", [part], supersede={"k3": "new is better"}, onto=base)
    assert "k3" in properties.content(made.open("d"))
    version = made.publish("d", [part], supersede={"k3": "new is better"})
    assert sorted({"new", "theirs", "k3"} & set(properties.content(version))) == ["new", "theirs"]
