"""Norms are exact: sums over fractions, quantiles of their rank, in the space of their transform."""

import itertools
from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import loader
from loader.api import norm_reads
from loader.dataset.statistics import norm as norms_module
from loader.dataset.statistics.exact_statistics import ExactSums, ValueCounts, add_counts, exact_sums
from loader.dataset.statistics.norm import parse_norm
from loader.dataset.tables.parquet import parse_stored, table_bytes, table_facts
from loader.errors import Corrupt, FieldMismatch, InvalidPlan
from loader.run.part_reads.build_windows import WindowReads
from tests.refusals import refusal

NUMBERS = itertools.count()
floats = arrays.arrays(
    st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)]),
    st.tuples(st.integers(1, 20), st.integers(1, 3)),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


@settings(max_examples=150)
@given(values=floats, cut=st.integers(0, 20), seed=st.integers(0, 2**32 - 1))
def test_sums_are_those_of_fractions_in_any_split(values: np.ndarray, cut: int, seed: int) -> None:
    weights = np.random.default_rng(seed).integers(1, 6, len(values))
    parts = [(values[part], weights[part]) for part in (slice(cut), slice(cut, None)) if len(values[part])]
    sums = [sum(own, ExactSums()) for own in zip(*(exact_sums(*part) for part in parts), strict=True)]
    for dim, own in enumerate(sums):
        exact = [Fraction(float(value)) for value in values[:, dim]]
        pairs = list(zip(exact, weights.tolist(), strict=True))
        n, total = sum(weight for _, weight in pairs), sum(value * weight for value, weight in pairs)
        squares = sum(value * value * weight for value, weight in pairs)
        assert own.n == n
        assert own.mean == float(total / n)
        variance = squares / n - (total / n) ** 2
        with localcontext() as context:
            context.prec = 400
            root = (Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt()
            assert own.std == float(root)
        assert (own.low, own.high) == (values[:, dim].min(), values[:, dim].max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zeros_of_both_signs_give_the_same_bits_in_any_order(dtype: Any) -> None:
    zeros = np.array([[-0.0], [0.0]], dtype)
    for values in (zeros, zeros[::-1]):
        whole, apart = exact_sums(values), [exact_sums(values[[0]])[0] + exact_sums(values[[1]])[0]]
        for (own,) in (whole, apart):
            assert not np.signbit([own.low, own.high]).any()


@settings(max_examples=100)
@given(values=floats, cut=st.integers(0, 20), q=st.floats(0, 1))
def test_quantiles_have_their_rank_in_any_split(values: np.ndarray, cut: int, q: float) -> None:
    values = values.astype(np.float32)
    counts = add_counts(ValueCounts.of(values[part]) for part in (slice(cut), slice(cut, None)))
    for dim in range(values.shape[1]):
        true = float(np.sort(values[:, dim])[int(q * (len(values) - 1))])
        assert abs(counts.quantile(dim, q) - true) <= abs(true) * 2**-11 + 2**-137


@pytest.fixture
def root() -> Iterator[loader.Root]:
    with loader.Root(f"memory://norms-{next(NUMBERS)}") as opened:
        yield opened


def write_episodes(root: loader.Root, n: int = 4) -> loader.View:
    rng = np.random.default_rng(7)
    with root.write("arm") as writer:
        for number in range(n):
            rows = 6 + 3 * number
            fields: dict[str, Any] = {"action.ns.npy": np.arange(rows) * 20_000_000}
            fields["action.npy"] = rng.normal(3, 2, (rows, 2)).astype(np.float32)
            fields["state.npy"], fields["state.ns.npy"] = (
                rng.normal(0, 1, (rows, 3)),
                np.arange(rows) * 20_000_000,
            )
            writer.add(f"ep{number}", fields)
    return root.open("arm@latest").select("action.npy", "state.npy")


AT: dict[str, Any] = {"action.npy": loader.rows(0, 4), "state.npy": [0]}


class Relative:
    """Actions less the window's first one."""

    version = "1"

    def __call__(self, window: dict[str, Any]) -> dict[str, Any]:
        return window | {"action.npy": window["action.npy"] - window["action.npy"][:1]}


def read_values(view: loader.View, transform: Any = None) -> dict[str, np.ndarray]:
    """All values of all windows that are not padding, out of a Loader."""
    plan = loader.plan({"arm": loader.windows(view, anchor="action.npy", at=AT)}, seed=1, global_batch=1)
    values: dict[str, list[np.ndarray]] = {"action.npy": [], "state.npy": []}
    with loader.Loader(plan, framework="numpy", workers=0, epochs=1) as batches:
        for batch in batches:
            window = {name: value[0] for name, value in batch.fields.items()}
            window = window if transform is None else transform(window)
            for field, own in values.items():
                own.append(window[field][~window[f"{field}.is_pad"]])
    return {field: np.concatenate(own) for field, own in values.items()}


@pytest.mark.parametrize("transform", [None, Relative()])
def test_norm_is_of_what_windows_deliver(root: loader.Root, transform: Any) -> None:
    view = write_episodes(root)
    windows = loader.windows(view, anchor="action.npy", at=AT)
    norm = loader.norm(windows, ["action.npy", "state.npy"], transform=transform)
    for field, values in read_values(view, transform).items():
        own = norm[field]
        assert own.n == len(values)
        np.testing.assert_allclose(own.mean, values.astype(np.float64).mean(0), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(own.std, values.astype(np.float64).std(0), rtol=1e-12)
        assert (own.min == values.min(0)).all()
        low = np.quantile(values.astype(np.float32), 0.25, axis=0, method="lower")
        np.testing.assert_allclose(own.quantile(0.25), low, rtol=2**-11)
    again = loader.norm(windows, ["action.npy", "state.npy"], transform=transform)
    assert [one["action.npy"].sums for one in (norm, again)] == [norm["action.npy"].sums] * 2
    assert len(list(root.store.list("norms/"))) == 1


def test_normaliser_applies_its_transform_first(root: loader.Root) -> None:
    view = write_episodes(root)
    windows = loader.windows(view, anchor="action.npy", at=AT)
    plan = loader.plan({"arm": windows}, seed=1, global_batch=4)
    norm = loader.norm(windows, ["action.npy"], transform=Relative())
    for mode in ("std", "minmax", "quantile"):
        scale = loader.normalise(norm, mode)
        with loader.Loader(plan, framework="numpy", workers=0, steps=1, transform=scale) as batches:
            (batch,) = batches
        with loader.Loader(plan, framework="numpy", workers=0, steps=1) as batches:
            (raw,) = batches
        relative = raw["action.npy"] - raw["action.npy"][:, :1]
        assert batch["action.npy"].dtype == np.float32
        np.testing.assert_allclose(scale.inverse("action.npy", batch["action.npy"]), relative, atol=1e-5)
        if mode == "minmax":
            assert np.abs(batch["action.npy"][~batch["action.npy.is_pad"]]).max() <= 1
    absolute = loader.norm(windows, ["action.npy"])
    assert absolute.path != norm.path
    with refusal(FieldMismatch, what="state.npy", accepted=["action.npy"]):
        norm["state.npy"]
    with refusal(FieldMismatch, what="action.npy", given=[4, 3]):
        loader.normalise(norm)({"action.npy": np.zeros((4, 3), np.float32)})
    with refusal(FieldMismatch, what="action.npy", given=["state.npy"]):
        loader.normalise(absolute)({"state.npy": np.zeros((1, 3))})


def test_wrong_requests_are_refused(root: loader.Root) -> None:
    windows = loader.windows(write_episodes(root), anchor="action.npy", at=AT)
    with refusal(InvalidPlan, what="fields", given="cls"):
        loader.norm(windows, ["cls"])
    no_lists: list[Any] = [[], "action.npy", [["action.npy"]]]
    for no_list in no_lists:
        with refusal(InvalidPlan, what="fields", given=no_list):
            loader.norm(windows, no_list)
        with refusal(InvalidPlan, what="fields", given=no_list):
            loader.norm(windows, no_list, transform=Relative())
    with refusal(InvalidPlan, what="transform", given=dict):
        loader.norm(windows, ["action.npy"], transform=dict)
    with refusal(InvalidPlan, what="mode", given="robust"):
        loader.normalise(loader.norm(windows, ["action.npy"]), "robust")  # type: ignore[arg-type]


def test_values_that_are_not_finite_are_refused(root: loader.Root) -> None:
    with root.write("bad") as writer:
        writer.add("ep0", {"action.npy": np.array([[1.0, 2.0], [1.0, np.nan]], np.float32)})
    windows = loader.windows(root.open("bad@1"), anchor="action.npy", at={"action.npy": loader.rows(0, 1)})
    with refusal(FieldMismatch, what="action.npy", where="dimension 1"):
        loader.norm(windows, ["action.npy"])


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1])
def test_whole_numbers_that_are_no_float_are_refused_by_value(root: loader.Root, value: int) -> None:
    with root.write("large") as writer:
        writer.add("ep0", {"action.npy": np.array([[1, 2], [1, value]], np.int64)})
    windows = loader.windows(root.open("large@1"), anchor="action.npy", at={"action.npy": loader.rows(0, 1)})
    accepted = "whole numbers from -2^53 to 2^53"
    with refusal(FieldMismatch, what="action.npy", given=value, accepted=accepted):
        loader.norm(windows, ["action.npy"])


def test_episode_without_a_value_adds_nothing(root: loader.Root) -> None:
    view = write_episodes(root, n=3)
    windows = loader.windows(view, anchor="action.npy", at={"action.npy": [0], "state.npy": ["-180ms"]})
    norm = loader.norm(windows, ["state.npy"])
    assert norm["state.npy"].n == 3  # of 12 rows the last three; the other episodes are too short


def test_quantiles_of_one_value_scale_by_the_extremes(
    root: loader.Root, caplog: pytest.LogCaptureFixture
) -> None:
    """Dimensions: moving; constant; a gripper that closes once in 400 rows; 400 values within one bin."""
    values = np.random.default_rng(1).normal(size=(400, 4)).astype(np.float32)
    values[:, 1] = 0.25
    values[:, 2] = np.where(np.arange(400) < 8, np.float32(-0.0), np.float32(0))
    values[-1, 2] = 1
    values[:, 3] = np.linspace(1000.05, 1000.2, 400, dtype=np.float32)
    with root.write("narrow") as writer:
        writer.add("ep0", {"action.npy": values})
    windows = loader.windows(root.open("narrow@1"), anchor="action.npy", at={"action.npy": loader.rows(0, 1)})
    norm = loader.norm(windows, ["action.npy"])
    scale = loader.normalise(norm, "quantile")
    (message,) = [record.getMessage() for record in caplog.records]
    assert "dimensions [2, 3] of 'action.npy'" in message
    scaled = scale({"action.npy": values})["action.npy"]
    extremes = loader.normalise(norm, "minmax")({"action.npy": values})["action.npy"]
    assert (scaled[:, 1:] == extremes[:, 1:]).all()
    assert (scaled[:, 1] == 0).all()
    assert scaled[[0, 9, 399], 2].tolist() == [-1, -1, 1]
    low, high = np.quantile(values[:, 0], [0.01, 0.99], method="lower")
    np.testing.assert_allclose(scaled[:, 0], 2 * (values[:, 0] - low) / (high - low) - 1, atol=2e-3)
    np.testing.assert_allclose(scale.inverse("action.npy", scaled), values, rtol=1e-6, atol=1e-6)


def test_stored_norm_that_was_edited_is_refused(tmp_path: Path) -> None:
    with loader.Root(str(tmp_path)) as root:
        windows = loader.windows(write_episodes(root), anchor="action.npy", at=AT)
        loader.norm(windows, ["action.npy"])
        (path,) = tmp_path.glob("norms/*.parquet")
        table = pq.read_table(path)
        edited = table.set_column(2, table.schema.field("n"), pa.array([9, 9], pa.int64()))
        pq.write_table(edited, path)
        with refusal(Corrupt, what="norm", given="its content differs from its checksum"):
            loader.norm(windows, ["action.npy"])


@pytest.mark.parametrize("transform", [None, Relative()])
def test_long_episodes_are_counted_in_parts(
    root: loader.Root, transform: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = {"action.npy": loader.rows(-2, 3), "state.npy": ["-30ms", 0, "10ms"]}
    view = write_episodes(root, 5)
    for rule in ("last", "linear"):
        windows = loader.windows(view, anchor="action.npy", at=at, rule={"state.npy": rule})
        norms, places = [], list[int]()
        for limit in (2**20, 20, 1):
            monkeypatch.setattr(norm_reads, "PLACES", limit)
            picks: list[int] = []

            class Reads(WindowReads):
                def pick(self, *args: Any, picks: list[int] = picks) -> Any:
                    picked = super().pick(*args)
                    picks.append(picked.number.size)
                    return picked

            monkeypatch.setattr(norm_reads, "WindowReads", Reads)
            norm = loader.norm(windows, ["action.npy", "state.npy"], transform=transform)
            norms.append(root.store.get(norm.path).data)
            root.store.delete_many([norm.path])
            places.append(max(picks))
        assert norms[0] == norms[1] == norms[2]
        assert places == [18 * 5, 20, 5]


def test_field_whose_values_are_all_padding_is_refused(root: loader.Root) -> None:
    clock = np.arange(6) * 20_000_000
    with root.write("late") as writer:
        values = {"action.npy": np.ones((6, 2)), "state.npy": np.ones((6, 3))}
        writer.add("ep0", values | {"action.ns.npy": clock, "state.ns.npy": clock + 10**9})
    view = root.open("late@1").select("action.npy", "state.npy")
    norm = loader.norm(
        loader.windows(view, anchor="action.npy", at={"action.npy": [0], "state.npy": [0]}),
        ["action.npy", "state.npy"],
    )
    for mode in ("std", "minmax", "quantile"):
        with refusal(FieldMismatch, what="state.npy", given=0):
            loader.normalise(norm, mode)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("column", "row", "value", "problem"),
    [
        ("dim", 1, 0, "its bins of dimension 1 are not in order"),
        ("field", 1, "state.npy", "it has 1 dimensions of values [2]"),
        ("n", 0, 7, "its counts of dimension 0 do not add up to 7 values"),
        ("bins", 0, b"", "its bins of dimension 0 are not in order"),
        ("counts", 1, b"", "its bins of dimension 1 are not in order"),
    ],
)
def test_norm_that_contradicts_itself_is_refused(
    root: loader.Root, column: str, row: int, value: Any, problem: str
) -> None:
    windows = loader.windows(write_episodes(root), anchor="action.npy", at={"action.npy": [0]})
    norm = loader.norm(windows, ["action.npy"])
    table = parse_stored(root.store.get(norm.path).data, norm.path, "norm")
    rows = table.to_pylist()
    rows[row][column] = value
    forged = pa.Table.from_pylist(rows, schema=table.schema)
    facts = table_facts(table) | {"content_sha256": norms_module._sha256(forged)}
    data = table_bytes(forged.replace_schema_metadata(None), "norm", facts=facts)
    with refusal(Corrupt, what="norm", where="norm", given=problem) as refused:
        parse_norm(data, norm.path, "norm")
    assert "delete it to rebuild it" in str(refused.value)
