"""New samples in the place of older ones: one version has neither both nor none of them."""

import polars as pl
import pytest

import loader
from loader.dataset.tables.parquet import TableFile, get_table
from loader.errors import Conflict, DuplicateKey, InvalidSample, SampleNotFound, VersionNotFound
from penstock.upkeep.verify.version import verify
from tests.refusals import refusal


@pytest.fixture
def ten_samples(root):
    with root.write("d", part_samples=4) as writer:
        for i in range(10):
            writer.add(f"k{i}", {"cls": i}, metadata={"w": i})
    return root


def write_part(root, *keys):
    return loader.write_part(root, root.begin("d"), [(key, {"cls": 7}, {"w": 70}) for key in keys])


def test_one_version_does_both(ten_samples, properties):
    before = len(ten_samples.state.versions("d"))
    part = write_part(ten_samples, "new", "other")
    version = ten_samples.publish(
        "d",
        [part],
        exclude={"other": "too dark"},
        supersede={"k3": "new is sharper", "k7": "new is larger"},
        onto=ten_samples.open("d").id,
    )
    assert sorted(properties.content(version)) == sorted(
        {*(f"k{i}" for i in (0, 1, 2, 4, 5, 6, 8, 9)), "new"}
    )
    assert len(ten_samples.state.versions("d")) == before + 1
    assert len(ten_samples.open("d@1")) == 10  # what was published stays
    assert verify(ten_samples, version.name, full=True).problems == []
    tables = [
        get_table(ten_samples.store, TableFile.from_json(file)) for file in version.manifest["exclusions"]
    ]
    assert {reason for table in tables for reason in table["reason"].to_pylist()} == {
        "too dark",
        "new is sharper",
        "new is larger",
    }
    assert ten_samples.publish("d", [part], supersede={"k1": "never read"}).id == version.id  # committed once
    assert len(ten_samples.open("d").samples().filter(pl.col("key") == "k3").collect()) == 0


def test_older_one_may_come_back_under_its_key(ten_samples, properties):
    ten_samples.publish("d", [write_part(ten_samples, "new")], supersede={"k3": "new is better"})
    version = ten_samples.publish(
        "d", [write_part(ten_samples, "k3")], supersede={"new": "k3 is better after all"}
    )
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
def test_refused(ten_samples, supersede, error, fault):
    with refusal(error, **fault):
        ten_samples.publish("d", [write_part(ten_samples, "new")], supersede=supersede)
    assert len(ten_samples.versions("d")) == 1


def test_first_version_supersedes_nothing(root):
    part = write_part(root, "new")
    with refusal(VersionNotFound, what="supersede", given="k3"):
        root.publish("d", [part], supersede={"k3": "x"})
    assert len(root.publish("d", [part], onto="")) == 1


def test_key_cannot_supersede_itself(ten_samples):
    with pytest.raises(DuplicateKey):
        ten_samples.publish("d", [write_part(ten_samples, "k3")], supersede={"k3": "x"})


@pytest.fixture
def overtaken(monkeypatch):
    """Somebody else changes the dataset when the change is ready and its log entry is not written."""
    from loader.dataset.publishing import publish as changes

    def overtake(act):
        real = changes.write_run

        def late(*args):
            change = real(*args)
            monkeypatch.setattr(changes, "write_run", real)
            act()
            return change

        monkeypatch.setattr(changes, "write_run", late)

    return overtake


def test_somebody_excludes_one_of_them_meanwhile(ten_samples, overtaken):
    part = write_part(ten_samples, "new")
    overtaken(lambda: loader.Root(ten_samples.url).exclude("d", ["k3"], reason="y"))
    with refusal(Conflict, what="exclusion", where="d@2"):
        ten_samples.publish("d", [part], supersede={"k3": "new is better", "k5": "new is better"})
    assert len(ten_samples.open("d")) == 9


def test_somebody_publishes_meanwhile(ten_samples, overtaken, properties):
    """Laid on the newer version, unless it was made for exactly the one before."""
    part, base = write_part(ten_samples, "new"), ten_samples.open("d").id

    def publish():
        other = loader.Root(ten_samples.url)
        other.publish("d", [write_part(other, "theirs")])

    overtaken(publish)
    with refusal(Conflict, what="parts"):
        ten_samples.publish("d", [part], supersede={"k3": "new is better"}, onto=base)
    assert "k3" in properties.content(ten_samples.open("d"))
    version = ten_samples.publish("d", [part], supersede={"k3": "new is better"})
    assert sorted({"new", "theirs", "k3"} & set(properties.content(version))) == ["new", "theirs"]
