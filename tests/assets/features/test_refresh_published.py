"""Features of published batches computed again: a new group and other values, in one new version; the old one stays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import dagster as dg
import numpy as np
import pytest

import loader
from assets.checks import CheckResult
from assets.features.refresh import stale
from assets.featurizers import Features, Featurizer
from assets.gate_settings import Gate
from assets.media.unit import Unusable
from assets.spec import DatasetSpec, Feature, Filter
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.errors import FieldNotFound
from loader.modalities import find_decoder
from penstock.stages import append_record, current_record
from tests.refusals import refusal

Run = Callable[..., dg.ExecuteInProcessResult]
Told = Callable[[dg.ExecuteInProcessResult], str]
Arrive = Callable[[Path], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes(Featurizer):
    """Bytes of a sample's file, times something; samples of fewer bytes than `least` are refused."""

    times: int = 1
    least: int = 0
    column: str = "size_bytes"
    name: str = "sizes"

    @property
    def version(self) -> str:
        return f"{self.times}-{self.least}"

    @property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        return {"image": ("jpg",)}

    @property
    def outputs(self) -> Mapping[str, tuple[str, ...]]:
        return {"image": (f"{self.name}.npy",)}

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        return {"image": (self.column, "times")}

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        return {f"{self.name}.npy": {"unit": f"{self.times} byte"}}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        size = len(sample["jpg"]) * self.times
        if len(sample["jpg"]) < self.least:
            raise Unusable("rejected", "featurize", "odd", "refused by the test")
        known = None if self.times == 3 else self.times
        return Features(
            fields={f"{self.name}.npy": np.array([size])}, columns={self.column: size, "times": known}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims(Featurizer):
    """The dimensions that the facts of a photo's field name, times something."""

    dims: tuple[str, ...] = ()
    times: int = 1
    name: str = "dims"

    def of_fields(self, facts: Mapping[str, Mapping[str, Any]]) -> Self:
        return replace(self, dims=tuple(facts["jpg"]["dims"]))

    @property
    def version(self) -> str:
        return f"{self.times}-0"

    @property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        return {"image": ("jpg",)}

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        return {"image": ("dims_named",)}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        return Features(fields={}, columns={"dims_named": self.times * "+".join(self.dims)})


def make_spec(times: int = 1, least: int = 0, **more: Any) -> DatasetSpec:
    feature = Feature(name=f"{__name__}:Sizes", parameters={"times": times, "least": least})
    return DatasetSpec(name="demo", features=(feature, Feature(name="picture")), **more)


@pytest.fixture
def landing(tmp_path: Path, make_jpeg: Callable[..., bytes]) -> Path:
    """Two photos of different sizes."""
    place = tmp_path / "landing"
    place.mkdir()
    (place / "large.jpg").write_bytes(make_jpeg(160, 120))
    (place / "small.jpg").write_bytes(make_jpeg(40, 30))
    return place


@pytest.fixture
def publish(run: Run, arrive: Arrive, landing: Path, failure_text: Told) -> Callable[..., str]:
    """Ingest what has arrived, and release it; the batch."""

    def go(spec: DatasetSpec) -> str:
        batch = arrive(landing)
        for result in (run("ingest", spec, batch), run("release", spec)):
            assert result.success, failure_text(result)
        return batch

    return go


@pytest.fixture
def refresh(run: Run, failure_text: Told) -> Callable[..., None]:
    """Refresh one batch, and release."""

    def go(spec: DatasetSpec, batch: str) -> None:
        result = run("refresh", spec, batch)
        assert result.success, failure_text(result)
        assert (released := run("release", spec)).success, failure_text(released)

    return go


def rows(version: loader.Version) -> dict[str, dict[str, Any]]:
    return {row["raw_key"]: row for row in version.samples().collect().to_dicts()}


def values(version: loader.Version, field: str) -> list[int]:
    """Of the live samples whose parts have the field."""
    ordinals = np.flatnonzero(version.select(field, where_present=True).members())
    found = read_fields(version.store, version.address(ordinals, [field]))
    return sorted(int(find_decoder(field)(one[field], None)[0]) for one in found)


def tars(root: loader.Root) -> set[str]:
    return {info.key for info in root.store.list("data/") if info.key.endswith(".tar")}


def test_featurizer_gets_the_facts_of_its_fields(
    root: loader.Root, publish: Callable[..., str], refresh: Callable[..., None]
) -> None:
    def spec(times: int) -> DatasetSpec:
        feature = Feature(name=f"{__name__}:Dims", parameters={"times": times})
        return DatasetSpec(name="demo", features=(feature,))

    batch = publish(spec(1))
    assert {row["dims_named"] for row in rows(root.open("demo@1")).values()} == {"row+column+channel"}
    refresh(spec(2), batch)
    assert {row["dims_named"] for row in rows(root.open("demo@2")).values()} == {2 * "row+column+channel"}


def test_new_version_has_the_new_features_and_the_old_one_stays(
    root: loader.Root, publish: Callable[..., str], refresh: Callable[..., None], run: Run
) -> None:
    batch = publish(make_spec(1))
    old = root.open("demo@1")
    assert stale(root, make_spec(1)) == []
    (one,) = stale(root, make_spec(2))
    assert (one.stage, one.partition, one.was, one.version) == ("feature_sizes", batch, "1-0", "2-0")
    shards = tars(root)

    refresh(make_spec(2), batch)
    new = root.open("demo@2")
    assert stale(root, make_spec(2)) == []
    before, after = rows(old), rows(new)
    for name in before:
        assert after[name]["size_bytes"] == 2 * before[name]["size_bytes"]
        assert (before[name]["times"], after[name]["times"]) == (1, 2)
    assert values(new, "sizes.r2.npy") == [2 * one for one in values(old, "sizes.npy")]
    assert values(new, "sizes.npy") == values(old, "sizes.npy")
    assert new.manifest["groups"]["sizes_r2"]["n_parts"] == new.manifest["n_parts"]
    assert "sizes.r2.npy" not in root.open("demo@1").fields
    told = {"jpg": {"dims": ["row", "column", "channel"]}, "sizes.npy": {"unit": "1 byte"}}
    assert old.facts == told
    assert new.facts == told | {"sizes.r2.npy": {"unit": "2 byte"}}
    assert rows(root.open("demo@1")) == before
    assert {key.rpartition("/")[2] for key in tars(root) - shards} == {"sizes_r2-image_00000_0.tar"}
    made = new.manifest["producer"]["featurizers"]["sizes"]
    assert made == {"version": "2-0", "group": "sizes_r2", "fields": {"sizes.npy": "sizes.r2.npy"}}
    edit = new.edits("size_bytes").collect().to_dicts()[0]
    assert (edit["annotated_by"], edit["annotation"]) == ("sizes 2-0", "refresh-sizes")

    # Once more, and of all stages: nothing is computed or published again.
    keys = {info.key for info in root.store.list()}
    refresh(make_spec(2), batch)
    assert run("ingest", make_spec(2), batch).success
    assert {info.key for info in root.store.list()} == keys


def test_batches_that_come_later_have_the_new_names_too(
    root: loader.Root,
    publish: Callable[..., str],
    refresh: Callable[..., None],
    landing: Path,
    make_jpeg: Callable[..., bytes],
) -> None:
    """No field ever holds values of two versions of a featurizer."""
    first = publish(make_spec(1))
    (landing / "third.jpg").write_bytes(make_jpeg(200, 100))
    publish(make_spec(2))
    between = root.open("demo@2")
    for field, group in (("sizes.npy", "sizes"), ("sizes.r2.npy", "sizes_r2")):
        with refusal(FieldNotFound, what="groups", where="demo@2", given=[group]):
            between.select(field)
    assert len(values(between, "sizes.npy")) == 2
    assert len(values(between, "sizes.r2.npy")) == 1
    assert [one.partition for one in stale(root, make_spec(2))] == [first]
    refresh(make_spec(2), first)
    whole = root.open("demo@3")
    assert values(whole, "sizes.r2.npy") == sorted(row["size_bytes"] for row in rows(whole).values())
    assert {row["times"] for row in rows(whole).values()} == {2}

    # The old featurizer again: two samples have its fields still, under its names, and get back its columns.
    again = [one.partition for one in stale(root, make_spec(1))]
    assert (len(again), again[0]) == (2, first)
    shards = tars(root)
    refresh(make_spec(1), first)
    back = root.open("demo@4")
    assert sorted(row["times"] for row in rows(back).values()) == [1, 1, 2]
    assert tars(root) == shards
    refresh(make_spec(1), again[1])
    assert len(values(root.open("demo@5"), "sizes.npy")) == 3


def test_what_the_new_values_leave_out_is_left_out_and_an_unknown_value_is_taken_away(
    root: loader.Root, publish: Callable[..., str], refresh: Callable[..., None]
) -> None:
    batch = publish(make_spec(1))
    size = rows(root.open("demo@1"))["small.jpg"]["size_bytes"]
    refresh(make_spec(3, filters=(Filter(column="size_bytes", maximum=3.0 * size),)), batch)
    left = rows(root.open("demo@2"))
    assert list(left) == ["small.jpg"]
    assert left["small.jpg"]["times"] is None
    assert len(root.open("demo@1")) == 2
    assert values(root.open("demo@2"), "sizes.r2.npy") == [3 * size]


def test_sample_that_was_excluded_is_not_computed(
    root: loader.Root, publish: Callable[..., str], refresh: Callable[..., None]
) -> None:
    batch = publish(make_spec(1))
    gone = rows(root.open("demo@1"))["small.jpg"]
    root.exclude("demo@1", [gone["key"]], reason="not wanted")
    refresh(make_spec(2, least=gone["size_bytes"] + 1), batch)  # it would be refused
    assert list(rows(root.open("demo@3"))) == ["large.jpg"]


def test_sample_that_is_back_before_the_release_is_computed_first(
    root: loader.Root,
    publish: Callable[..., str],
    refresh: Callable[..., None],
    run: Run,
    landing: Path,
    make_jpeg: Callable[..., bytes],
) -> None:
    first = publish(make_spec(1))
    (landing / "later.jpg").write_bytes(make_jpeg(80, 60))
    second, spec = publish(make_spec(1)), make_spec(2)
    root.exclude("demo@2", [rows(root.open("demo@2"))["small.jpg"]["key"]], reason="by mistake")
    assert run("refresh", spec, first).success
    root.retire("demo@3", reason="nothing was wrong with it")
    assert run("release", spec).success, "nothing can be published, and nothing is in the way"
    assert [record.number for record in root.versions("demo") if record.retired is None] == [1, 2]
    assert [one.partition for one in stale(root, spec)] == [first, second]

    root.exclude("demo@2", [rows(root.open("demo@2"))["small.jpg"]["key"]], reason="again")
    for batch in (first, second):
        assert run("refresh", spec, batch).success
    root.retire("demo@4", reason="again")
    assert run("release", spec).success
    assert {name: row["times"] for name, row in rows(root.open("demo@5")).items()} == {
        "large.jpg": 1,
        "small.jpg": 1,
        "later.jpg": 2,
    }, "the other batch goes on"
    assert [one.partition for one in stale(root, spec)] == [first]
    refresh(spec, first)
    last = root.open("demo@latest")
    assert {row["times"] for row in rows(last).values()} == {2}
    assert values(last, "sizes.r2.npy") == sorted(row["size_bytes"] for row in rows(last).values())


@pytest.mark.parametrize(("rate", "left"), [(0.0, None), (0.5, ["large.jpg"])])
def test_refused_samples_are_left_out_and_too_many_stop_the_batch(
    rate: float,
    left: list[str] | None,
    root: loader.Root,
    publish: Callable[..., str],
    run: Run,
    failure_text: Told,
) -> None:
    batch = publish(make_spec(1))
    size = rows(root.open("demo@1"))["small.jpg"]["size_bytes"]
    spec = make_spec(1, least=size + 1, max_reject_rate=rate)
    computed = run("refresh", spec, batch)
    assert computed.success is (left is not None)
    assert run("release", spec).success
    if left is None:
        assert (
            "featurizer 'sizes' refuses 1 of 2 samples, max_reject_rate of the dataset allows 0.0%"
            in failure_text(computed)
        )
        assert [record.number for record in root.versions("demo")] == [1]
    else:
        assert list(rows(root.open("demo@2"))) == left
    assert stale(root, spec) == []  # what was refused waits for a person


def test_refresh_that_fails_the_gate_is_given_up_until_somebody_makes_it_again(
    root: loader.Root, publish: Callable[..., str], run: Run, failure_text: Told
) -> None:
    def small(table: Any, baseline: Any) -> CheckResult:
        assert len(table) == 2
        assert baseline is None
        passed = table["times"].max() < limits[0]
        return CheckResult(name="small", passed=passed, explanation=f"times up to {table['times'].max()}")

    limits, gate = [2], Gate(checks={"small": small})
    batch = publish(make_spec(1, gate=gate))
    spec = make_spec(2, gate=gate)
    assert run("refresh", spec, batch).success
    released = run("release", spec)
    assert not released.success
    assert "nothing was refreshed: small: times up to 2" in failure_text(released)
    record = current_record(root.store, "demo", "feature_sizes", batch)
    assert record is not None
    assert (record.verdict, root.state.txns[record.body["refresh"]].status) == ("failed", "aborted")
    assert stale(root, spec) == []
    assert run("release", spec).success  # nothing waits any more, and batches can go on
    assert [one.number for one in root.versions("demo")] == [1]

    limits[0] = 3
    assert run(["feature_sizes"], spec, batch).success
    assert run("release", spec).success
    assert {row["times"] for row in rows(root.open("demo@2")).values()} == {2}


def test_what_a_collector_gave_up_or_a_publish_overlooked_is_computed_again(
    root: loader.Root, publish: Callable[..., str], refresh: Callable[..., None], run: Run
) -> None:
    batch, spec = publish(make_spec(1)), make_spec(2)
    assert run("refresh", spec, batch).success
    waits = current_record(root.store, "demo", "feature_sizes", batch)
    assert waits is not None
    assert stale(root, spec) == []
    root.abort(waits.body["refresh"], "no sign of life")
    assert [one.partition for one in stale(root, spec)] == [batch]
    refresh(spec, batch)

    # A record that came after its transaction was committed is in no version.
    done = current_record(root.store, "demo", "feature_sizes", batch)
    assert done is not None
    assert stale(root, spec) == []
    append_record(root.store, replace(done, r=0))
    assert [one.partition for one in stale(root, spec)] == [batch]


def test_feature_that_was_not_there_is_added_and_one_like_a_column_of_something_else_is_not(
    root: loader.Root, publish: Callable[..., str], refresh: Callable[..., None], run: Run, failure_text: Told
) -> None:
    plain = replace(make_spec(1), features=())
    batch = publish(plain)
    (one,) = stale(root, replace(make_spec(1), features=make_spec(1).features[:1]))
    assert (one.partition, one.was) == (batch, "")
    refresh(replace(make_spec(1), features=make_spec(1).features[:1]), batch)
    assert len(values(root.open("demo@2"), "sizes.npy")) == 2

    taken = Feature(name=f"{__name__}:Sizes", parameters={"column": "source_nbytes", "name": "other"})
    result = run("refresh", replace(plain, features=(taken,)), batch)
    assert not result.success
    assert "column 'source_nbytes'" in failure_text(result)


def test_looking_for_what_is_stale_costs_a_request_per_batch_and_stage(
    root: loader.Root, publish: Callable[..., str], landing: Path, make_jpeg: Callable[..., bytes]
) -> None:
    def requests() -> int:
        counted: list[str] = []
        kept = root.store.get
        root.store.get = lambda key, *more: (counted.append(key), kept(key, *more))[1]  # type: ignore[method-assign]
        try:
            stale(root, make_spec(2))
        finally:
            root.store.get = kept  # type: ignore[method-assign]
        return sum(key.startswith(("stages/", "tables/")) for key in counted)

    publish(make_spec(1))
    one = requests()
    for number in range(2):
        (landing / f"more-{number}.jpg").write_bytes(make_jpeg(100 + number, 50))
        publish(make_spec(1))
    assert (one, requests()) == (3, 9)  # units and two features of one batch, and of three
