"""Any annotations, new parts and exclusions, in any order and from any version, are what dicts say of them."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.dataset.labels import join as key_match
from loader.dataset.publishing import commit, compaction, publication_gate
from loader.dataset.tables import annotations as edits
from loader.dataset.tables import stats

CI = settings(max_examples=10, deadline=None, derandomize=True)

VALUES = {
    "i": st.integers(-3, 3),
    "f": st.one_of(st.integers(0, 3).map(float), st.just(0.5)),
    "s": st.sampled_from("xyz"),
    "b": st.booleans(),
}
row = st.fixed_dictionaries({}, optional={name: st.one_of(st.none(), one) for name, one in VALUES.items()})


@st.composite
def scripts(draw):
    """Up to eight steps over up to twelve samples."""
    steps, n = [], 0
    for number in range(draw(st.integers(2, 8))):
        verb = (
            draw(st.sampled_from(["write", "annotate", "annotate", "annotate", "exclude"]))
            if number
            else "write"
        )
        if verb == "write":
            keys = [f"k{n + i}" for i in range(draw(st.integers(1, 4)))]
            n += len(keys)
            steps.append((verb, {key: draw(row) for key in keys}))
        elif verb == "exclude":
            steps.append((verb, f"k{draw(st.integers(0, n - 1))}"))
        else:
            keys = draw(st.lists(st.integers(0, n + 1), min_size=1, max_size=5, unique=True))
            rows = {f"k{key}": draw(row) for key in keys}
            steps.append((verb, draw(st.integers(0, 3)), rows, draw(st.booleans())))
    return steps


@pytest.fixture(scope="module")
def model(shared):
    return shared("dataset/annotation_model")


@CI
@given(scripts())
def test_any_annotations(model, script):
    model.run(script)


def test_any_annotations_in_many_files(model, monkeypatch):
    monkeypatch.setattr("loader.dataset.labels.annotate.FILE_ROWS", 1)
    monkeypatch.setattr("loader.dataset.labels.rows.BATCH_ROWS", 1)

    @settings(max_examples=4, deadline=None, derandomize=True)
    @given(scripts())
    def some(script):
        model.run(script)

    some()


BASE = ("write", {f"k{i}": {"i": i, "s": "x"} for i in range(6)})
MANY = [
    BASE,
    *(
        step
        for i in range(12)
        for step in (
            (
                "annotate",
                i % 3,
                {f"k{i % 6}": {"i": i - 6, "f": i / 2}, f"k{i % 5}": {"s": "xyz"[i % 3]}},
                False,
            ),
            ("write", {f"n{i}": {"i": i, "s": "y"}}),
            ("annotate", 0, {f"n{i}": {"i": None}}, i % 2 == 0),
        )
    ),
]
"""So many changes that tables of what was published before are merged."""

SCRIPTS = {
    "many": MANY,
    "twice": [
        BASE,
        ("annotate", 0, {"k1": {"i": 3}}, False),
        ("annotate", 0, {"k1": {"i": -1}, "k2": {"i": 9}}, False),
    ],
    "removed": [
        BASE,
        ("annotate", 0, {"k5": {"i": None, "s": "y"}}, True),
        ("annotate", 0, {"k0": {"s": "z"}}, True),
    ],
    "kept": [BASE, ("annotate", 0, {"k5": {"i": None, "s": "y"}}, False)],
    "overtaken": [BASE, ("annotate", 0, {"k1": {"i": 3}}, False), ("annotate", 1, {"k1": {"i": 4}}, False)],
    "beside": [BASE, ("annotate", 0, {"k1": {"i": 3}}, False), ("annotate", 1, {"k2": {"i": 4}}, False)],
    "excluded": [BASE, ("exclude", "k1"), ("annotate", 0, {"k1": {"i": 7}, "k2": {"i": 4}}, False)],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_some_annotations(model, name):
    model.run(SCRIPTS[name])


def first_said(patch):
    patch.setattr(pl.Expr, "last", pl.Expr.first)


def nulls_remove(patch):
    patch.setattr(edits, "_sets_cell", lambda frame, name: pl.lit(True))


def removals_are_forgotten(patch):
    patch.setattr(edits, "_sets_cell", lambda frame, name: pl.col(name).is_not_null())


def statistics_add(patch):
    patch.setattr(stats, "WHOLE", "nothing")


def plant_stale_statistics(patch):
    real = commit.annotation_stats

    def stale_stats(store, before, ours, columns):
        first = [entry for entry in before if entry["group"] == "metadata"]
        return real(store, first, ours, columns)

    patch.setattr(commit, "annotation_stats", stale_stats)


def plant_run_order(patch):
    """What the tables of the runs say comes before what an annotation says of all of them."""
    real = compaction._shorten_runs

    def merge_wrongly(store, prefix, manifest, done):
        base = [file for file in manifest["samples"] if not edits.is_annotation(file)]
        later = [file for file in manifest["samples"] if edits.is_annotation(file)]
        found = real(store, prefix, {**manifest, "samples": base}, done)
        return {**found, "samples": [*found["samples"], *later]}

    patch.setattr(compaction, "_shorten_runs", merge_wrongly)


def nobody_is_refused(patch):
    patch.setattr(publication_gate.SameCells, "_compare", lambda self, parent, name: None)


def everybody_is_refused(patch):
    def compare(self, parent, name):
        raise publication_gate.Conflict("somebody was here")

    patch.setattr(publication_gate.SameCells, "_compare", compare)


def plant_live_rows(patch):
    real = key_match._live

    def live(version):
        start, members = real(version)
        members[:] = True
        return start, members

    patch.setattr(key_match, "_live", live)


def rows_of_the_neighbour(patch):
    real = key_match.match_keys

    def match(*args, **kwargs):
        found = real(*args, **kwargs)
        given = found.row_of.copy()
        given[:2] = given[:2][::-1]
        return key_match.Matches(
            row_of=given,
            position=found.position,
            row=found.row,
            unmatched=found.unmatched,
            overruled=found.overruled,
        )

    patch.setattr("loader.dataset.labels.annotate.match_keys", match)


BUGS = {
    first_said: "twice",
    nulls_remove: "kept",
    removals_are_forgotten: "removed",
    statistics_add: "twice",
    plant_stale_statistics: "beside",
    plant_run_order: "many",
    nobody_is_refused: "overtaken",
    everybody_is_refused: "beside",
    plant_live_rows: "excluded",
    rows_of_the_neighbour: "twice",
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bug_is_found(model, monkeypatch, bug):
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        model.run(SCRIPTS[BUGS[bug]])
