"""Norms by a column, and over versions: bit for bit those of all values together."""

import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from loader.api import norm_reads
from loader.dataset.statistics.norm import FieldNorm, FieldTotals, GroupedNorm, Norm
from loader.errors import Corrupt, DecodeFailed, FieldMismatch, FieldNotFound, InvalidPlan
from tests.refusals import refusal

NUMBERS = itertools.count()
AT: dict[str, Any] = {"action.npy": loader.rows(0, 4), "state.npy": [0]}
FIELDS = ("action.npy", "state.npy")
ROBOTS = "arm", "hand", "arm", "leg"


@pytest.fixture
def root() -> Iterator[loader.Root]:
    with loader.Root(f"memory://norms-by-{next(NUMBERS)}") as opened:
        yield opened


def episode(number: int) -> dict[str, Any]:
    rng, rows = np.random.default_rng(number), 6 + 3 * number
    clock = np.arange(rows) * 20_000_000
    return {
        "action.npy": rng.normal(3 * number, 2, (rows, 2)).astype(np.float32),
        "action.ns.npy": clock,
        "state.npy": rng.normal(0, 1, (rows, 3)),
        "state.ns.npy": clock,
    }


def write(root: loader.Root, numbers: range, **columns: Any) -> loader.Version:
    with root.write("arm") as writer:
        for number in numbers:
            robot = ROBOTS[number % len(ROBOTS)]
            writer.add(f"ep{number}", episode(number), {"robot": robot, "good": number % 3 != 1} | columns)
    return root.open("arm@latest")


def make_windows(version: loader.Version, where: str = "", **options: Any) -> Any:
    view = version.select(*FIELDS)
    options = {"anchor": "action.npy", "at": AT, "columns": ("robot",)} | options
    return loader.windows(view.where(where) if where else view, **options)


class Relative:
    """Actions less the window's first one."""

    version = "1"

    def __call__(self, window: dict[str, Any]) -> dict[str, Any]:
        return window | {"action.npy": window["action.npy"] - window["action.npy"][:1]}


def exact(norm: FieldNorm) -> tuple[Any, ...]:
    counts = norm.counts
    return norm.shape, norm.sums, counts.bins.tolist(), counts.counts.tolist()


def assert_same(one: Norm, other: Norm) -> None:
    assert list(one.fields) == list(other.fields)
    for field in one.fields:
        assert exact(one[field]) == exact(other[field])


@pytest.mark.parametrize("transform", [None, Relative()])
def test_each_value_has_the_norm_of_its_episodes(root: loader.Root, transform: Any) -> None:
    version = write(root, range(7))
    norms = loader.norm(make_windows(version), FIELDS, by="robot", transform=transform)
    assert isinstance(norms, GroupedNorm)
    assert list(norms.norms) == sorted(set(ROBOTS))
    for robot in ROBOTS:
        alone = loader.norm(make_windows(version, f"robot = '{robot}'"), FIELDS, transform=transform)
        assert_same(norms[robot], alone)
    again = loader.norm(make_windows(version), FIELDS, by="robot", transform=transform)
    assert again.path == norms.path != loader.norm(make_windows(version), FIELDS, transform=transform).path
    for robot in ROBOTS:
        assert_same(norms[robot], again[robot])


@pytest.mark.parametrize("workers", [0, 1])
def test_each_window_is_scaled_by_its_robot(tmp_path: Path, workers: int) -> None:
    with loader.Root(str(tmp_path)) as root:
        windows = make_windows(write(root, range(4)))
        norms = loader.norm(windows, FIELDS, by="robot", transform=Relative())
        scale = loader.normalise(norms, "std")
        plan = loader.plan({"arm": windows}, seed=3, global_batch=5)
        with loader.Loader(plan, framework="numpy", workers=workers, steps=8, transform=scale) as read:
            scaled = list(read)
        with loader.Loader(plan, framework="numpy", workers=0, steps=8) as read:
            raw = list(read)
    for own, batch in zip(scaled, raw, strict=True):
        assert own["robot"] == batch["robot"]
        keys = [key.partition("@")[0] for _, key in batch.ids]
        assert batch["robot"] == [ROBOTS[int(key.removeprefix("ep"))] for key in keys]
        for slot, robot in enumerate(batch["robot"]):
            sample = {name: value[slot] for name, value in batch.fields.items()}
            alone = loader.normalise(norms[robot], "std")(sample)
            for field in FIELDS:
                assert (own[field][slot] == alone[field]).all()
                restored = scale.inverse(field, own[field][slot], robot)
                assert (restored == loader.normalise(norms[robot]).inverse(field, alone[field])).all()
    copy = pickle.loads(pickle.dumps(scale))  # noqa: S301 - our own bytes
    assert (
        copy.inverse("state.npy", np.ones(3), "leg") == scale.inverse("state.npy", np.ones(3), "leg")
    ).all()


def test_value_without_a_norm_is_named(root: loader.Root) -> None:
    version = write(root, range(4))
    norms = loader.norm(make_windows(version, "robot <> 'leg'"), FIELDS, by="robot")
    sample = {name: np.zeros((1, 2 if name == "action.npy" else 3), np.float32) for name in FIELDS}
    scale = loader.normalise(norms)
    with refusal(FieldMismatch, what="robot", given="leg"):
        scale(sample | {"robot": "leg"})
    with refusal(FieldMismatch, what="robot", given=["action.npy", "state.npy"]):
        scale(sample)
    with refusal(FieldMismatch, what="robot", given="None"):
        scale.inverse("action.npy", sample["action.npy"])
    with refusal(InvalidPlan, what="by", given="robot", accepted=[]):
        loader.norm(make_windows(version, columns=()), FIELDS, by="robot")
    with pytest.raises(FieldNotFound, match="did you mean 'robot'"):
        make_windows(version, columns=("robt",))
    with refusal(InvalidPlan, what="columns", given="robot"):
        make_windows(version, columns="robot")
    with root.write("rows") as writer:
        writer.add("ep0", episode(0), {"anchor_ns": 3})
    with refusal(InvalidPlan, what="anchor_ns", where="view"):
        make_windows(root.open("rows@1"), columns=("anchor_ns",))


def test_episodes_without_a_value_are_named(root: loader.Root) -> None:
    write(root, range(3))
    with root.write("arm") as writer:
        writer.add("ep9", episode(2), {"good": True})
    version = root.open("arm@latest")
    with refusal(InvalidPlan, what="by", where="episode 'ep9'", given="robot"):
        loader.norm(make_windows(version), FIELDS, by="robot")
    plan = loader.plan({"arm": make_windows(version, "key = 'ep9'")}, seed=3, global_batch=1)
    with (
        loader.Loader(plan, framework="numpy", workers=0, on_corrupt="raise") as read,
        refusal(DecodeFailed, what="robot", within="'ep9'"),
    ):
        next(read)
    assert list(loader.norm(make_windows(version, "robot IS NOT NULL"), FIELDS, by="robot").norms)


@pytest.mark.parametrize("where", ["", "good"])
@pytest.mark.parametrize("by", [None, "robot"])
def test_later_version_reads_new_episodes_alone(
    root: loader.Root, by: Any, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbytes = [0]
    read_fields = norm_reads.read_fields

    def count_bytes(store: Any, addresses: Any, **options: Any) -> Any:
        nbytes[0] += sum(field.nbytes for one in addresses for field in one.fields.values())
        return read_fields(store, addresses, **options)

    monkeypatch.setattr(norm_reads, "read_fields", count_bytes)

    def measure_read(function: Any) -> tuple[Any, int]:
        before = nbytes[0]
        return function(), nbytes[0] - before

    def of_each(numbers: Any) -> int:
        kept = [number for number in numbers if not where or number % 3 != 1]
        return sum(len(data) for number in kept for data in stored[number])

    stored = {number: list(map(npy_bytes, episode(number).values())) for number in range(9)}
    first = write(root, range(5))
    norm, cost = measure_read(lambda: loader.norm(make_windows(first, where), FIELDS, by=by))
    assert cost == of_each(range(5))
    second = write(root, range(5, 7))
    third = write(root, range(7, 9))  # nobody asks for the second version's
    grown, cost = measure_read(lambda: loader.norm(make_windows(third, where), FIELDS, by=by))
    assert cost == of_each(range(5, 9))
    data = root.store.get(grown.path).data
    root.store.delete_many([grown.path, norm.path])
    whole, cost = measure_read(lambda: loader.norm(make_windows(third, where), FIELDS, by=by))
    assert cost == of_each(range(9))
    assert root.store.get(whole.path).data == data
    assert whole.path == grown.path
    assert second.number == 2


def npy_bytes(array: Any) -> bytes:
    encoded: bytes = bytes(loader.modalities.encode("x.npy", array))
    return encoded


def test_episode_that_is_gone_or_relabelled_is_not_counted(root: loader.Root) -> None:
    first = write(root, range(5))
    loader.norm(make_windows(first), FIELDS, by="robot")
    loader.norm(make_windows(first), FIELDS)
    root.annotate("arm@latest", "fixed", {"ep1": {"robot": "arm"}}, author="me")
    labels = root.open("arm@latest")
    relabelled = loader.norm(make_windows(labels), FIELDS, by="robot")
    assert sorted(relabelled.norms) == ["arm", "leg"]
    assert_same(relabelled["leg"], loader.norm(make_windows(labels, "robot = 'leg'"), FIELDS))
    root.exclude("arm@latest", ["ep0"], reason="bad")
    later = root.open("arm@latest")
    norm = loader.norm(make_windows(later), FIELDS)
    assert norm["state.npy"].n == sum(len(episode(number)["state.npy"]) for number in range(1, 5))


def test_values_of_many_groups_do_not_wait(root: loader.Root, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = make_windows(write(root, range(8)), columns=("key",))
    waiting, most = list[FieldTotals](), 0

    class Totals(FieldTotals):
        def add(self, values: Any, weights: Any) -> None:
            nonlocal most
            super().add(values, weights)
            waiting.append(self)
            most = max(most, sum(own._n_values for own in {id(one): one for one in waiting}.values()))

    together = loader.norm(windows, FIELDS, by="key")
    root.store.delete_many([together.path])
    monkeypatch.setattr(norm_reads, "FieldTotals", Totals)
    monkeypatch.setattr(norm_reads, "WAITING", 200)
    norms = loader.norm(windows, FIELDS, by="key")
    assert most < 200 + 27 * 5
    for key in norms.norms:
        assert_same(norms[key], together[key])


def test_robots_of_other_widths_have_norms_of_theirs(root: loader.Root) -> None:
    with root.write("arm") as writer:
        for number, width in enumerate((3, 5, 3)):
            fields = episode(number) | {
                "state.npy": np.random.default_rng(number).normal(0, 1, (6 + 3 * number, width))
            }
            writer.add(f"ep{number}", fields, {"robot": f"robot{width}"})
    windows = make_windows(root.open("arm@1"))
    norms = loader.norm(windows, FIELDS, by="robot")
    again = loader.norm(windows, FIELDS, by="robot")
    for robot in ("robot3", "robot5"):
        assert_same(norms[robot], again[robot])
    assert again["robot5"]["state.npy"].mean.shape == (5,)
    assert again["robot3"]["state.npy"].shape == (3,)


def test_norms_and_plans_do_not_go_on_over_other_clocks(root: loader.Root) -> None:
    with root.write("arm") as writer:
        for number in range(3):
            fields = episode(number)
            writer.add(f"ep{number}", {name: fields[name] for name in FIELDS}, {"robot": "arm"})
    at = {"action.npy": loader.rows(0, 1), "state.npy": [0]}
    steps = loader.norm(make_windows(root.open("arm@1"), at=at), FIELDS)
    late = {"action.ns.npy": 0, "state.ns.npy": 50_000_000}
    root.add_group(
        "arm@1",
        "clocks",
        {
            name: lambda sample, start=start: start + np.arange(len(sample["action.npy"])) * 20_000_000
            for name, start in late.items()
        },
    )
    plan = loader.plan({"arm": make_windows(root.open("arm@1"), at=at)}, seed=3, global_batch=2)
    with refusal(InvalidPlan, what="action.npy", where="source 'arm'", given="action.ns.npy"):
        plan.grow({"arm": root.open("arm@latest")}, 2)
    timed = loader.norm(make_windows(root.open("arm@latest"), at=at), FIELDS)
    assert (
        timed["state.npy"].n == steps["state.npy"].n - 3 * 3
    )  # three rows of each episode are before its state
    root.store.delete_many([steps.path, timed.path])
    assert_same(loader.norm(make_windows(root.open("arm@latest"), at=at), FIELDS), timed)


def test_stored_norm_by_a_column_that_was_edited_is_refused(tmp_path: Path) -> None:
    with loader.Root(str(tmp_path)) as root:
        version = write(root, range(3))
        path = tmp_path / loader.norm(make_windows(version), FIELDS, by="robot").path
        path.write_bytes(path.read_bytes()[:-200] + bytes(200))
        with pytest.raises(Corrupt):
            loader.norm(make_windows(version), FIELDS, by="robot")
