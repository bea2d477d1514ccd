"""Samples that a person excluded: no rebuild brings them back, until they are taken back."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loader
from assets.arrivals.make_batches import rebuild_of
from assets.media.policy import CutPolicy, ImagePolicy
from assets.samples.excluded_units import excluded_units
from assets.spec import DatasetSpec
from penstock.stages import current_record
from penstock.upkeep.exclusion import exclude, obey, withdraw

SPEC = DatasetSpec(name="demo", max_reject_rate=1.0)
SMALL = rebuild_of(SPEC, "demo_small", policy=CutPolicy(image=ImagePolicy(short_side_px=32)))
TOLD = {"reason": "wrong | label", "by": "ann"}


@pytest.fixture
def landing(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> Path:
    """Three photos."""
    place = tmp_path / "landing"
    place.mkdir()
    for number in range(3):
        (place / f"{number}.jpg").write_bytes(make_jpeg(96 + 2 * number, 64))
    return place


def raws(version: loader.Version) -> set[str]:
    return set(version.samples().collect()["raw_key"])


def metadata_texts(result: Any) -> dict[str, str]:
    """The metadata of the materializations of a run, as text."""
    return {
        name: str(value.value)
        for event in result.get_asset_materialization_events()
        for name, value in event.materialization.metadata.items()
    }


def test_no_rebuild_brings_a_sample_back(
    run: Any,
    root: loader.Root,
    landing: Path,
    arrive: Callable[[Path], str],
    instance: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run("ingest", SPEC, arrive(landing)).success
    result = run("release", SPEC)
    assert "viewer" not in metadata_texts(result)
    table = root.open("demo@1").samples().collect()
    (key,) = table.filter(table["raw_key"] == "1.jpg")["key"]
    exclude(root, "demo@1", [key], **TOLD)
    assert raws(root.open("demo@2")) == {"0.jpg", "2.jpg"}

    # It lands again, alone: there is nothing to publish, and nothing that the gate stops.
    os.utime(landing / "1.jpg", (1, 1))
    again = arrive(landing)
    result = run("ingest", SPEC, again)
    samples = current_record(root.store, "demo", "samples", again)
    assert samples is not None
    assert samples.body["exclude"] == {key: "excluded by ann: wrong | label"}
    assert samples.body["parts"] == []
    assert "excluded by ann: wrong &#124; label | 1" in metadata_texts(result)["left_out_by_reason"]
    result = run("release", SPEC)
    assert result.success
    assert raws(root.open("demo")) == {"0.jpg", "2.jpg"}
    assert "ann | wrong &#124; label | 1" in metadata_texts(result)["excluded_by_people"]

    # Cut in another way it has another key, and it is the same photo.
    assert run("take_over", SMALL).success
    for batch in instance.get_dynamic_partitions("demo_small_raw_batch"):
        assert run("ingest", SMALL, batch).success
    assert run("release", SMALL).success
    assert raws(root.open("demo_small")) == {"0.jpg", "2.jpg"}

    # Taken back, the next build has it.
    withdraw(root, "demo", [key], reason="it is right", by="ben")
    assert raws(root.open("demo")) == {"0.jpg", "2.jpg"}
    assert run("ingest", SPEC, again).success
    monkeypatch.setenv("PENSTOCK_VIEW_URL", "http://view.example")
    result = run("release", SPEC)
    assert raws(root.open("demo")) == {"0.jpg", "1.jpg", "2.jpg"}
    assert metadata_texts(result)["viewer"] == "http://view.example/v/demo/3"
    assert "[demo@3](http://view.example/v/demo/3)" in metadata_texts(result)["made_of"]
    assert metadata_texts(result)["excluded_by_people"] == "none"


def test_release_finishes_what_a_killed_exclusion_began(
    run: Any,
    root: loader.Root,
    landing: Path,
    arrive: Callable[[Path], str],
    make_jpeg: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run("ingest", SPEC, arrive(landing)).success
    assert run("release", SPEC).success
    (key,) = root.open("demo").samples().collect().filter(raw_key="1.jpg")["key"]

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loader.Root, "exclude", interrupt)
        with pytest.raises(KeyboardInterrupt):
            exclude(root, "demo", [key], **TOLD)
    assert "1.jpg" in raws(root.open("demo"))
    (landing / "new.jpg").write_bytes(make_jpeg(120, 64))
    assert run("ingest", SPEC, arrive(landing)).success
    assert run("release", SPEC).success
    assert [raws(root.open(f"demo@{n}")) for n in (2, 3)] == [
        {"0.jpg", "2.jpg"},
        {"0.jpg", "2.jpg", "new.jpg"},
    ]


def write(root: loader.Root, *keys: str, name: str = "demo") -> loader.Version:
    """Two segments and a photo: of a1 and a2 the raw object is one."""
    with root.write(name) as writer:
        for key in keys:
            source = {"unit_id": f"u-{key}", "raw_uri": f"s3://raw/{key[0]}", "raw_sha256": key[0] * 64}
            if key[0] == "a":
                source |= {"raw_start": "0@1/1", "raw_end": "5@1/1"}
            writer.add(key, {"cls": 1}, source=source)
    return root.open(name)


def row(key: str, unit: str = "u", raw: str = "r") -> dict[str, str]:
    return {"key": key, "unit_id": unit, "raw_sha256": raw * 64}


def test_part_of_an_object_is_excluded_alone_unless_the_whole_object_is(root: loader.Root) -> None:
    write(root, "a1", "a2", "b1")
    rows = [row("a1", "u-a1", "a"), row("cut-anew", "u-new", "a"), row("b-anew", "u-b", "b")]
    exclude(root, "demo@1", ["a1", "b1"], **TOLD)
    assert excluded_units(root.store, "demo", "", rows).keys() == {"u-a1", "u-b"}
    assert excluded_units(root.store, "other", "demo", rows).keys() == {"u-a1", "u-b"}
    assert excluded_units(root.store, "other", "", rows) == {}
    assert excluded_units(root.store, "demo", "", [row("named-anew", "u-a1")]).keys() == {"u-a1"}


def test_whole_objects_take_all_of_their_samples(root: loader.Root) -> None:
    write(root, "a1", "a2", "b1")
    rows = [row("a1", "u-a1", "a"), row("cut-anew", "u-new", "a")]
    record, version = exclude(root, "demo@1", ["a1"], **TOLD, whole_objects=True)
    assert record.keys == ("a1", "a2")
    assert set(version.samples().collect()["key"]) == {"b1"}
    assert exclude(root, "demo@1", ["a1"], **TOLD, whole_objects=True)[0] == record
    assert excluded_units(root.store, "demo", "", rows).keys() == {"u-a1", "u-new"}
    withdraw(root, "demo", ["a2"], reason="fine", by="ben")
    assert excluded_units(root.store, "demo", "", rows).keys() == {"u-a1"}


def test_release_obeys_what_stands(root: loader.Root) -> None:
    write(root, "a1", "a2", "b1")
    assert obey(root, "demo") is None
    exclude(root, "demo@1", ["a1", "a2"], **TOLD)
    withdraw(root, "demo", ["a2"], reason="fine", by="ben")
    assert obey(root, "demo") is None
    root.retire("demo@2", reason="made by mistake")
    version = obey(root, "demo")
    assert version is not None
    assert set(version.samples().collect()["key"]) == {"a2", "b1"}
    assert obey(root, "nothing") is None
    write(root, "c1", name="one")
    write(root, "d1", name="one")
    exclude(root, "one@2", ["c1"], **TOLD)
    exclude(root, "one@1", ["c1"], **TOLD | {"by": "ben"})
    root.retire("one@3", reason="x")
    root.retire("one@2", reason="x")
    assert obey(root, "one") is None, "a version is never empty"
