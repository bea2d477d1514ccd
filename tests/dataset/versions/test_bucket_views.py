"""Views split into buckets: which samples, in what they are saved, and what has no bucket."""

import json
import math
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import loader
from loader.dataset.versions import bucket_views
from loader.dataset.versions import samples_table as samples
from loader.errors import FieldNotFound, InvalidPlan
from tests.refusals import refusal

NAMES = ["w64h64", "o'x", 'a "b"', "é/ü", "", "TRUE", "7"]


def write(root, rows, name="d"):
    with root.write(name, part_samples=7) as writer:
        for i, metadata in enumerate(rows):
            writer.add(f"k{i}", {"cls": i}, metadata=metadata)
    return writer.version


def numbers(view):
    return sorted(int(key[1:]) for key in view.keys(view.version_ordinals(np.arange(len(view)))))


def rows(n=40):
    return [
        {"shape": NAMES[i * i % 5], "n": i % 4 - 1, "even": i % 2 == 0, "t": i / 4, "big": 2**62 + i % 2}
        for i in range(n)
    ]


@pytest.fixture
def version(root):
    return write(root, rows())


@pytest.mark.parametrize(
    ("by", "label_of"),
    [
        ("shape", lambda row: row["shape"]),
        ("n", lambda row: str(row["n"])),
        ("even", lambda row: str(row["even"])),
        ("big", lambda row: str(row["big"])),
        ("n * 2 + 1", lambda row: str(row["n"] * 2 + 1)),
        ("CASE WHEN t < 5 THEN 'short' ELSE 'long' END", lambda row: "short" if row["t"] < 5 else "long"),
        ("'all'", lambda row: "all"),
    ],
)
def test_every_value_is_a_bucket(version, by, label_of):
    for view in (version.select(), version.select().where("n >= 0")):
        kept = [i for i, row in enumerate(rows()) if view.predicate is None or row["n"] >= 0]
        want = {}
        for i in kept:
            want.setdefault(label_of(rows()[i]), []).append(i)
        parts = view.split(by, None)
        assert list(parts) == sorted(want)
        assert {label: numbers(part) for label, part in parts.items()} == want
        assert sum(map(len, parts.values())) == len(view)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    edges=st.lists(st.sampled_from((0.25, 1, 2.5, 3, "4.75", 7, 9.75)), min_size=1, max_size=5, unique=True)
)
def test_ranges_hold_low_and_not_high(version, edges):
    asked = loader.bucket("t", edges=[0, *sorted(edges, key=float), float("inf")])
    parts = version.select().split(asked.by, asked.edges)
    found = {}
    for label, part in parts.items():
        low, high = map(float, label.split(".."))
        want = [i for i, row in enumerate(rows()) if low <= row["t"] < high]
        assert numbers(part) == want
        found[label] = want
    assert sorted(i for want in found.values() for i in want) == list(range(40))
    assert all(found.values())


def test_bucket_is_the_view_with_its_predicate(version, root):
    for label, part in version.select().where("n >= 0").split("shape", None).items():
        again = version.select().where("n >= 0").where(part.predicate.partition(" AND ")[2][1:-1])
        assert (again.id, numbers(again)) == (part.id, numbers(part))
        spec = json.loads(json.dumps(part.spec()))
        opened = loader.View(root.open(spec["version"]), spec["fields"], spec["where"])
        assert (opened.id, numbers(opened)) == (part.id, numbers(part)), label
        assert numbers(pickle.loads(pickle.dumps(part))) == numbers(part)  # noqa: S301


@pytest.mark.parametrize(
    ("by", "edges"),
    [("shape", None), ("n", None), ("even", None), ("t", ("0", "2.5", "inf")), ("t", ("0", "2.5", "10"))],
)
@pytest.mark.parametrize("predicate", [None, "n >= 0", "(n >= 0) AND (t < 8)"])
def test_bucket_knows_its_view(version, by, edges, predicate):
    view = version.select("cls") if predicate is None else version.select("cls").where(predicate)
    for label, part in view.split(by, edges).items():
        again = part.unsplit(by, edges, label)
        assert (again.predicate, again.fields, again.id) == (view.predicate, view.fields, view.id)


def test_saved_plan_opens_without_a_scan_of_the_samples(root, version, monkeypatch):
    asked = loader.bucket("t", edges=[0, 4, 10])
    plan = loader.plan({"d": version}, seed=1, global_batch=5, bucket_by=asked)
    plan.save(root)

    def fail_scan(*_):
        raise AssertionError("the samples table was read")

    monkeypatch.setattr(samples, "scan_samples", fail_scan)
    opened = loader.open_plan(loader.Root(root.url), plan.hash)
    assert opened == plan
    for step in range(9):
        assert opened.slots(step).ordinal.tolist() == plan.slots(step).ordinal.tolist()
    with pytest.raises(AssertionError, match="was read"):
        len(version.select().where("t > 1"))


@pytest.mark.parametrize(
    ("change", "by", "edges", "says"),
    [
        (
            {"shape": None},
            "shape",
            None,
            r"2 of 40 .*shape has no value for 'k30?' \(None\), 'k30?' \(None\)\..*NOT NULL",
        ),
        ({"t": math.nan}, "t", [0, "inf"], r"2 of 40 .*in 0 to inf for 'k30?' \(nan\), 'k30?' \(nan\)"),
        ({"t": -1.0}, "t", [0, "inf"], r"2 of 40 .*'k3' \(-1.0\).*widen the edges"),
        ({"t": 99.5}, "t", [0, "99.5"], r"2 of 40 .*'k3' \(99.5\)"),
        ({}, "t", [5, "inf"], r"20 of 40 .*for ('k\d+' \([0-4]\.\d+\), ){5}\.\.\.\. Leave"),
    ],
)
def test_samples_without_a_bucket_are_counted_and_named(root, change, by, edges, says):
    version = write(root, [row | (change if i in (3, 30) else {}) for i, row in enumerate(rows())])
    with pytest.raises(InvalidPlan, match=says):
        loader.plan(
            {"d": version},
            seed=1,
            global_batch=2,
            bucket_by=loader.bucket(by, edges=edges),
            allow_repeats=True,
        )
    if change:  # what the message says to do
        keep = version.select().where(f"{by} >= 0 AND {by} < 90" if edges else f"{by} IS NOT NULL")
        assert sum(map(len, keep.split(by, edges).values())) == 38


@pytest.mark.parametrize(
    ("by", "edges", "error", "fault"),
    [
        ("t", None, InvalidPlan, {"what": "bucket('t')", "given": "Float64"}),
        ("shape", ("0", "1"), InvalidPlan, {"what": "bucket('shape', edges=)", "given": "String"}),
        (
            "nothing",
            None,
            FieldNotFound,
            {
                "what": "bucket('nothing')",
                "where": "d@1",
                "given": ["nothing"],
                "accepted": ["big", "even", "key", "n", "part", "row", "shape", "t"],
            },
        ),
        (
            "n +",
            None,
            FieldNotFound,
            {
                "what": "bucket('n +')",
                "accepted": "an SQL expression",
            },
        ),
    ],
)
def test_what_makes_no_buckets(version, by, edges, error, fault):
    with refusal(error, **fault):
        version.select().split(by, edges)


def test_too_many_values(version, monkeypatch):
    monkeypatch.setattr(bucket_views, "MAX_BUCKETS", 39)
    with refusal(InvalidPlan, what="bucket('CAST(t * 4 AS BIGINT)')", given=40, accepted=39):
        version.select().split("CAST(t * 4 AS BIGINT)", None)


def test_empty_range_is_dropped(version):
    assert list(version.select().split("t", ("0", "3", "3.1", "3.2", "20"))) == ["0..3", "3..3.1", "3.2..20"]


@pytest.mark.parametrize("asked", [("shape", None), ("t", ("0", "2.5", "5", "7.5", "10"))])
def test_samples_table_is_read_once_however_many_buckets(version, stores, asked):
    again = pickle.loads(pickle.dumps(version))  # noqa: S301
    tables = {file["path"] for file in version.manifest["samples"]}
    read, get = [], version.store.get

    class Watched(stores.Counting):
        def get(self, key):
            read.append(key)
            return get(key)

    again.store = Watched(version.store)
    parts = again.select().split(*asked)
    assert len(parts) >= 3
    assert sorted(key for key in read if key in tables) == sorted(
        file["path"]
        for file in version.manifest["samples"]
        if file["group"] in ("keys", version.manifest["columns"][asked[0]]["group"])
    )
