"""The laws of exchange, for every format that the registries name, on versions that nobody wrote by hand.

A format joins by its line in a registry. Those below it are what docs/formats.md calls lost.
"""

import io
import itertools
import json
import string
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loader.dataset.root import root_over
from loader.dataset.tables.columns import fits
from loader.storage import open_store
from penstock.formats import registry
from penstock.formats.content_digest import content_digest
from penstock.formats.registration.register import register
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place

TOKENS_ALONE = {"megatron"}
"""Formats that hold tokens, and nothing else: test_registered_leaves.py has their laws."""
BOTH = sorted(
    (registry.EXPORTED & (registry.REGISTERED | registry.IMPORTED)) - {"files", "lerobot"} - TOKENS_ALONE
)
"""Formats that are written and read as samples; of `files` each one is a sample, and lerobot takes episodes alone."""
NUMBER = itertools.count()

words = st.text(
    st.characters(codec="utf-8", exclude_categories=("C",), exclude_characters="./"), min_size=1, max_size=6
)
keys = st.lists(words, min_size=1, max_size=3).map("/".join).filter(lambda key: not key.startswith("__"))
names = st.sampled_from(
    ["jpg", "txt", "json", "cam.mp4", "x_y-1.bin", "tokens.u2", "a.b.f4", "a_b.f4", "npy"]
)
instants = st.integers(0, 2**50).map(lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us))
columns = {
    "n": st.integers(-(2**63), 2**63 - 1),
    "score": st.floats(-1e100, 1e100),
    "kept": st.booleans(),
    "caption": st.text(st.characters(codec="utf-8"), max_size=8),
    "at": instants,
    "tags": st.lists(st.text(string.ascii_letters, max_size=3), max_size=3),
    "times": st.lists(instants, max_size=2),
}
"""Metadata column -> its values."""


def value(name):
    """Bytes that any format can hold in a field of this name."""
    if name == "txt":
        return st.text(st.characters(codec="utf-8"), max_size=20).map(str.encode)
    if name == "json":
        return st.integers().map(json.dumps).map(str.encode)
    if name == "npy":
        return st.lists(st.integers(-9, 9), max_size=3).map(lambda list_: npy(list_))
    width = int(name[-1]) if name[-2:-1] in "uif" and name[-1] in "1248" else 1
    return st.binary(max_size=700).map(lambda data: data[: len(data) // width * width])


def npy(values):
    out = io.BytesIO()
    np.save(out, np.array(values, np.int32))
    return out.getvalue()


@st.composite
def versions(draw):
    """Runs of samples, (key, fields, metadata, source): all have the first fields, some runs have one more."""
    every = sorted(draw(st.sets(names, min_size=1, max_size=3)))
    more = draw(names.filter(lambda name: name not in every) | st.none())
    told = sorted(draw(st.sets(st.sampled_from(sorted(columns)))))
    found = draw(st.lists(keys, min_size=1, max_size=7, unique=True))
    cut, runs = draw(st.integers(1, len(found))), []
    for some, fields in ((found[:cut], every), (found[cut:], [*every, more] if more else every)):
        runs.append(
            [
                (
                    key,
                    {name: draw(value(name)) for name in fields},
                    {name: draw(st.none() | columns[name]) for name in told},
                    {"split": draw(st.sampled_from(["train", "val"]))},
                )
                for key in some
            ]
        )
    return [run for run in runs if run]


def fresh():
    """An empty store."""
    return open_store(f"memory://laws-{next(NUMBER)}")


def made(runs):
    """d@n of a root in memory: a part for each run, fields that some lack in a group of their own."""
    root = root_over(fresh())
    every = set.intersection(*(set(fields) for run in runs for _, fields, *_ in run))
    for run in runs:
        groups = {name: "media" if name in every else "more" for _, fields, *_ in run for name in fields}
        with root.write("d", groups=groups) as writer:
            for key, fields, metadata, source in run:
                writer.add(key, fields, metadata=metadata, source=source)
    return root.open("d")


def objects_in(store):
    """Objects of a place but the notes of exports."""
    return {
        info.key: bytes(store.get(info.key).data)
        for info in store.list()
        if not info.key.startswith(".penstock/")
    }


def digest(version, **how):
    done = content_digest(version, **how)
    assert done.failures == []
    return done.digest


def imported(name, place, store, **how):
    report = import_place(root_over(store), name, place, "d", workers=1, **how)
    assert report.failures == []
    return root_over(store).open("d")


@pytest.mark.parametrize("name", BOTH)
@given(runs=versions())
@example(
    runs=[
        [("a", {"jpg": b""}, {}, {"split": "val"})],
        [("b", {"jpg": b"", "json": b"0"}, {}, {"split": "val"})],
    ]
)
@settings(max_examples=12, deadline=None)
def test_laws_1_2_and_3_content_leaves_and_comes_back(name, runs, tmp_path_factory):
    """digest(import(F, export(v, F))) = digest(v), digest(register(F, x)) = digest(import(F, x)), and x leaves as x."""
    version = made(runs)
    place = open_store(tmp_path_factory.mktemp("place"))
    done = export(version, name, place, workers=1)
    assert (done.failures, done.lost) == ([], [])
    back = imported(name, place, fresh())
    assert digest(back) == digest(version)
    found = [one.samples().select("key", "split").collect().sort("key").to_dicts() for one in (back, version)]
    assert found[0] == found[1]
    kinds = [
        {column: told["type"] for column, told in one.manifest["columns"].items() if column in columns}
        for one in (back, version)
    ]
    assert all(
        fits(kinds[1][column], kind) or fits(kind, kinds[1][column]) for column, kind in kinds[0].items()
    )
    if name not in {*registry.REGISTERED, *registry.TABLES}:
        return  # it cannot be registered
    registered = register(root_over(fresh()), name, place.url, "d").version
    assert digest(registered, full=True) == digest(version, full=True)
    out = open_store(tmp_path_factory.mktemp("out"))
    again = export(registered, name, out, workers=1)
    assert (again.failures, again.lost, again.samples) == ([], [], len(version))
    assert objects_in(out) == objects_in(place)  # law 3: export(register(F, x), F) is x
    assert digest(imported(name, out, fresh())) == digest(version)
