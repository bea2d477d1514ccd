"""Stored maps: each sample has its place in every version, and forged or damaged objects are left out by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import loader
from loader.dataset.search.segments import put_segment, version_parts
from loader.errors import Corrupt, FieldMismatch, FieldNotFound, NotIndexed
from penstock.search.map.fit import fit_map
from penstock.search.map.placement import place
from penstock.search.map.stored_fit import fit_bytes, fit_path, map_folder, parse_fit, put_fit, read_fit
from penstock.search.map.stored_map import drop_map, make_map
from penstock.search.map.version_map import MAP_KIND, VersionMap, map_index_record, read_map
from tests.refusals import refusal

Array = np.ndarray[Any, np.dtype[Any]]
WIDTH = 12


def vectors(n: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(1).normal(size=(6, WIDTH))
    return (means[rng.integers(0, 6, n)] + 0.3 * rng.normal(size=(n, WIDTH))).astype(np.float16)


def append(root: loader.Root, rows: Array, first: int) -> None:
    with root.write("d", part_samples=30) as writer:
        for number, row in enumerate(rows, first):
            writer.add(f"k{number:04d}", {"appearance.npy": row})


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    root = loader.Root(tmp_path / "root")
    append(root, vectors(80, 1), 0)
    return root


def by_key(version: loader.Version, field: str | None = None) -> dict[str, tuple[float, ...]]:
    """Return key -> x, y, cluster, cosine."""
    return places_by_key(version, read_map(version, field))


def places_by_key(version: loader.Version, places: VersionMap) -> dict[str, tuple[float, ...]]:
    keys = version.keys(np.arange(len(version)))
    columns = zip(places.x, places.y, places.cluster, places.cluster_cosine, strict=True)
    rows = [tuple(float(value) for value in row) for row in columns]
    return {key: row for key, row, has in zip(keys, rows, places.has_place, strict=True) if has}


def paths(root: loader.Root) -> list[str]:
    return sorted(info.key for info in root.store.list("maps/"))


def test_places_are_those_of_the_fit(root: loader.Root) -> None:
    report = make_map(root, "d")
    version = root.open("d")
    how = map_index_record(version, None)
    assert how is not None
    fit = read_fit(root.store, how)
    assert fit is not None
    stored = np.stack([version[number]["appearance.npy"] for number in range(80)]).astype(np.float32)
    unit = stored / np.linalg.norm(stored, axis=1, keepdims=True)
    placed = place(fit, unit)
    places = read_map(version)
    assert places.has_place.all()
    assert np.abs(places.x.astype(int) - placed.x).max() <= 1
    assert np.array_equal(places.cluster, placed.cluster)
    assert np.allclose(places.cluster_cosine, placed.cluster_cosine, atol=2e-3)
    assert (report.n_samples, report.n_new, report.n_anchors, report.n_clusters) == (80, 80, 80, 9)
    assert report.folder == map_folder(how)
    assert report.nbytes == sum(info.nbytes for info in root.store.list("maps/"))


def test_later_and_earlier_versions_fall_into_the_same_map(root: loader.Root) -> None:
    make_map(root, "d")
    before = by_key(root.open("d@1"))
    fit = next(path for path in paths(root) if path.endswith("fit.parquet"))
    fitted = root.store.get(fit).data
    append(root, vectors(50, 2), 80)
    root.exclude("d", ["k0003", "k0090"], reason="blurred")
    assert len(by_key(root.open("d"))) == 79, "new samples have no place yet"
    report = make_map(root, "d")
    assert (report.n_new, report.n_samples) == (50, 128)
    assert root.store.get(fit).data == fitted
    after = by_key(root.open("d"))
    assert after.keys() == before.keys() - {"k0003"} | {f"k{number:04d}" for number in range(80, 130)} - {
        "k0090"
    }
    assert all(after[key] == before[key] for key in before if key in after)
    assert by_key(root.open("d@1")) == before
    assert make_map(root, "d").n_new == 0


def test_map_made_in_one_go_equals_one_made_bit_by_bit(root: loader.Root, tmp_path: Path) -> None:
    make_map(root, "d")
    how = map_index_record(root.open("d"), None)
    assert how is not None
    fit = read_fit(root.store, how)
    assert fit is not None
    for number in range(20):  # enough segments to merge
        append(root, vectors(3, number), 100 + 3 * number)
        make_map(root, "d")
    at_once = loader.Root(tmp_path / "other")
    append(at_once, vectors(80, 1), 0)
    for number in range(20):
        append(at_once, vectors(3, number), 100 + 3 * number)
    put_fit(at_once.store, fit, how, "")
    make_map(at_once, "d")
    assert by_key(root.open("d")) == by_key(at_once.open("d"))


def test_samples_without_a_usable_vector_have_no_place(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    rows = vectors(10, 3)
    rows[2] = 0
    rows[5, 1] = np.nan
    rows[7, 0] = np.inf
    append(root, rows, 0)
    assert make_map(root, "d").n_samples == 7
    assert by_key(root.open("d")).keys() == {f"k{number:04d}" for number in (0, 1, 3, 4, 6, 8, 9)}


def test_version_without_vectors_or_without_a_map_is_refused(root: loader.Root) -> None:
    with refusal(NotIndexed, what="appearance.npy", where="d@1"):
        read_map(root.open("d"))
    with pytest.raises(FieldNotFound):
        make_map(root, "d", "smell.npy")
    with root.write("zeros") as writer:
        writer.add("a", {"appearance.npy": np.zeros(4, np.float16)})
    with refusal(
        FieldMismatch, what="appearance.npy", where="zeros@1", accepted="vectors that are finite and not zero"
    ):
        make_map(root, "zeros")
    assert paths(root) == []


def test_damaged_segment_is_left_out_by_name_and_made_again(root: loader.Root) -> None:
    make_map(root, "d")
    before = by_key(root.open("d"))
    segment = next(path for path in paths(root) if not path.endswith("fit.parquet"))
    data = bytearray(root.store.get(segment).data)
    data[len(data) // 3] ^= 1
    root.store.put(segment, bytes(data))
    places = read_map(root.open("d"))
    assert list(places.damaged) == [segment]
    assert not places.has_place.any()
    report = make_map(root, "d")
    assert (report.n_new, report.damaged) == (80, {})
    assert by_key(root.open("d")) == before


def test_forged_segment_shows_no_excluded_or_foreign_sample(root: loader.Root) -> None:
    make_map(root, "d")
    root.exclude("d", ["k0001"], reason="private")
    version = root.open("d")
    how = map_index_record(version, None)
    assert how is not None
    parts = [part.own for part in version_parts(version, "appearance.npy")]
    n_rows = sum(part.n_rows for part in parts)
    forged = pa.table(
        [pa.array(np.full(n_rows, 7), kind) for kind in MAP_KIND.columns.types[:3]]
        + [pa.array(np.full(n_rows, 9, np.float16))],
        schema=MAP_KIND.columns,
    )
    root.store.delete_many([path for path in paths(root) if not path.endswith("fit.parquet")])
    put_segment(root.store, map_folder(how), MAP_KIND, parts, forged)
    places = read_map(version)
    assert len(places.x) == len(version) == 79
    assert "k0001" not in places_by_key(version, places)


def test_damaged_fit_is_named_and_dropped(root: loader.Root) -> None:
    make_map(root, "d")
    how = map_index_record(root.open("d"), None)
    assert how is not None
    path = fit_path(how)
    fit = root.store.get(path).data
    for damage in (
        fit[:-9],
        fit[: len(fit) // 2],
        b"PAR1",
        fit[:200] + bytes([fit[200] ^ 1]) + fit[201:],
    ):
        root.store.put(path, damage)
        with refusal(Corrupt, what="fit of a map", where=path):
            read_map(root.open("d"))
        with pytest.raises(Corrupt, match=r"run penstock index REF --map --drop"):
            make_map(root, "d")
    assert path in drop_map(root, "d")
    assert paths(root) == []
    assert make_map(root, "d").n_samples == 80


def test_forged_fit_is_refused(root: loader.Root) -> None:
    make_map(root, "d")
    how = map_index_record(root.open("d"), None)
    assert how is not None
    fit = read_fit(root.store, how)
    assert fit is not None
    assert parse_fit(fit_bytes(fit, how, ""), fit_path(how)).x.tolist() == fit.x.tolist()
    many = fit_map(np.eye(WIDTH, dtype=np.float32))
    object.__setattr__(many, "anchors", many.anchors * np.float32(5))
    path = fit_path(how)
    with refusal(Corrupt, what="fit of a map", where=path, given="an anchor has not the length 1"):
        parse_fit(fit_bytes(many, how, ""), fit_path(how))
    strange = fit_map(np.eye(WIDTH, dtype=np.float32))
    object.__setattr__(strange, "clusters", np.full(WIDTH, 60_000, np.uint16))
    with refusal(Corrupt, what="fit of a map", where=path, given="a cluster has the number 60000"):
        parse_fit(fit_bytes(strange, how, ""), fit_path(how))
    with root.write("other") as writer:
        writer.add("a", {"appearance.npy": np.ones(WIDTH, np.float16)})
    other = map_index_record(root.open("other"), None)
    assert other is not None
    with refusal(Corrupt, what="path", where=fit_path(other), given=path):
        parse_fit(fit_bytes(fit, how, ""), fit_path(other))
