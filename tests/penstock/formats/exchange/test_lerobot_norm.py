"""LeRobot's statistics: those of all exported rows, or of a norm of all windows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from loader.errors import Conflict, FieldMismatch, InvalidRuntime
from loader.storage import open_store
from penstock.cli import main
from penstock.formats.run_export import export
from tests.penstock.formats.builders.lerobot_files import v21
from tests.refusals import refusal

STATE = "observation.state"


class Relative:
    """Values less the window's first one."""

    version = "1"

    def __call__(self, window: dict[str, Any]) -> dict[str, Any]:
        return {name: value - value[:1] for name, value in window.items() if not name.endswith("is_pad")}


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    source = v21(tmp_path / "in")
    assert main(["import", "lerobot", str(source), "arm", "--root", str(tmp_path / "root")]) == 0
    return loader.Root(str(tmp_path / "root"))


def make_windows(version: loader.Version, field: str = STATE) -> Any:
    name = f"{field}.npy"
    return loader.windows(version.select(name), anchor=name, at={name: loader.rows(0, 1)}, columns=("task",))


def test_statistics_are_those_of_the_norm(root: loader.Root, tmp_path: Path) -> None:
    version = root.open("arm@1")
    norm = loader.norm(make_windows(version), [f"{STATE}.npy"])
    command = ["export", "arm@1", "lerobot", str(tmp_path / "out"), "--root", root.url, "--norm", norm.path]
    assert main([*command, "--lossy"]) == 0
    export(version, "lerobot", open_store(str(tmp_path / "plain")), lossy=True)
    own, plain = (json.loads((tmp_path / name / "meta/stats.json").read_text()) for name in ("out", "plain"))
    values = np.concatenate([sample[f"{STATE}.npy"] for sample in version[:]])
    one = norm[f"{STATE}.npy"]
    assert own[STATE]["mean"] == one.mean.tolist()
    assert own[STATE]["std"] == one.std.tolist()
    for name in ("q01", "q10", "q50", "q90", "q99"):
        q = int(name[1:]) / 100
        assert own[STATE][name] == one.quantile(q).tolist()
        true = np.quantile(values, q, axis=0, method="lower")
        np.testing.assert_allclose(own[STATE][name], true, rtol=2**-11)
    rest = {"count", "max", "min", "mean", "std"}
    assert {name: own[STATE][name] for name in rest} == {name: plain[STATE][name] for name in rest}
    assert {name: one for name, one in own.items() if name != STATE} == {
        name: one for name, one in plain.items() if name != STATE
    }
    with pytest.raises(Conflict):  # another export
        export(version, "lerobot", open_store(str(tmp_path / "plain")), lossy=True, norm=norm.path)


def write_episodes(root: loader.Root, name: str, episodes: dict[str, dict[str, Any]]) -> loader.Version:
    """A version of episodes at 10 Hz: key -> field -> array, or the document `episode.json`."""
    with root.write(name) as writer:
        for key, fields in episodes.items():
            clocks = {}
            for field, values in fields.items():
                if field.endswith(".npy"):
                    clocks[f"{field.removesuffix('.npy')}.ns.npy"] = np.arange(len(values)) * 10**8
            writer.add(key, fields | clocks)
    return root.open(f"{name}@1")


def export_stats(version: loader.Version, folder: Path) -> dict[str, Any]:
    export(version, "lerobot", open_store(str(folder)), lossy=True)
    stats: dict[str, Any] = json.loads((folder / "meta/stats.json").read_text())
    return stats


@pytest.mark.parametrize("file_bytes", [1, 2**30])
def test_statistics_are_those_of_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_bytes: int
) -> None:
    """Episodes lie at different values, so the quantiles of all rows are not means of the episodes'."""
    monkeypatch.setattr("penstock.formats.lerobot.lerobot_export.FILE_BYTES", file_bytes)
    draw = np.random.default_rng(1)
    lengths = [7, 100, 41, 1, 63]
    state = [draw.normal(10 * n, 3, (length, 3)).astype(np.float32) for n, length in enumerate(lengths)]
    pose = [draw.normal(size=(length, 2, 2)) for length in lengths]
    grip = [(draw.random(length) < 0.03) for length in lengths]
    steps = [np.full((length, 2), n, np.int64) for n, length in enumerate(lengths)]
    parts = {"action": state, "pose": pose, "grip": grip, "steps": steps}
    wrong = {"stats": {"action": {"mean": [0.0] * 3, "std": [1.0] * 3, "count": [1], "q01": [5.0] * 3}}}
    episodes = {
        f"episode_{n:06d}": {f"{name}.npy": values[n] for name, values in parts.items()}
        | {"episode.json": {"fps": "10", **wrong}}
        for n in range(len(lengths))
    }
    with loader.Root(str(tmp_path / "root")) as root:
        stats = export_stats(write_episodes(root, "d", episodes), tmp_path / "out")
    for name, values in parts.items():
        rows = np.concatenate(values).astype(np.float64)
        rows = rows.reshape(len(rows), *(rows.shape[1:] or (1,)))
        own = stats[name]
        assert own.keys() == {"min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"}
        assert own["count"] == [sum(lengths)]
        np.testing.assert_array_equal(own["min"], rows.min(0))
        np.testing.assert_array_equal(own["max"], rows.max(0))
        np.testing.assert_allclose(own["mean"], rows.mean(0), rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(own["std"], rows.std(0), rtol=1e-12)
        for quantile in ("q01", "q10", "q50", "q90", "q99"):
            true = np.quantile(rows, int(quantile[1:]) / 100, axis=0)
            np.testing.assert_allclose(own[quantile], true, rtol=2**-11, atol=2**-11 * np.abs(rows).max())


def test_statistics_leave_out_rows_that_are_not_finite(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    values[2, 1] = np.nan
    values[4, 0] = np.inf
    with loader.Root(str(tmp_path / "root")) as root:
        version = write_episodes(
            root, "d", {"episode_000000": {"action.npy": values, "wide.npy": np.full(6, np.nan)}}
        )
        stats = export_stats(version, tmp_path / "out")
    rows = values[[0, 1, 3, 5]].astype(np.float64)
    assert (stats["action"]["count"], stats["action"]["mean"]) == ([4], rows.mean(0).tolist())
    assert stats["action"]["max"] == [10.0, 11.0]
    assert "wide" not in stats


def test_quantiles_of_cameras_are_bounds(tmp_path: Path) -> None:
    """Statistics of images are copied from the recorder, and no median follows from them."""
    camera = "observation.images.high"
    source = v21(tmp_path / "in", cameras=(camera,))
    lines = []
    for n in range(3):
        own = {
            name: [[[n + 0.5]]] * 3
            for name in ("mean", "std", "min", "max", "q01", "q10", "q50", "q90", "q99")
        }
        lines.append(json.dumps({"episode_index": n, "stats": {camera: own | {"count": [100]}}}))
    (source / "meta/episodes_stats.jsonl").write_text("\n".join(lines))
    assert main(["import", "lerobot", str(source), "arm", "--root", str(tmp_path / "root")]) == 0
    with loader.Root(str(tmp_path / "root")) as root:
        stats = export_stats(root.open("arm"), tmp_path / "out")[camera]
    assert {name: stats[name][0][0][0] for name in ("min", "q01", "q10", "q90", "q99", "max", "mean")} == {
        "min": 0.5, "q01": 0.5, "q10": 0.5, "q90": 2.5, "q99": 2.5, "max": 2.5, "mean": 1.5,
    }  # fmt: skip
    assert "q50" not in stats


def test_export_that_an_earlier_release_began_is_refused(root: loader.Root, tmp_path: Path) -> None:
    version, target = root.open("arm@1"), open_store(str(tmp_path / "out"))
    export(version, "lerobot", target, lossy=True)
    for path in (tmp_path / "out/.penstock/totals").glob("*"):
        path.unlink()
    with refusal(Conflict, what=".penstock/totals/000000.parquet", where=f"{tmp_path}/out"):
        export(version, "lerobot", target, lossy=True)


def test_norms_that_do_not_fit_are_refused(root: loader.Root, tmp_path: Path) -> None:
    version, field = root.open("arm@1"), f"{STATE}.npy"
    windows = make_windows(version)
    later = root.exclude("arm@1", [version.keys(np.array([0]))[0]], reason="bad").select(field)
    other = loader.norm(loader.windows(later, anchor=field, at={field: [0]}), [field])
    relative = loader.norm(windows, [field], transform=Relative())
    grouped = loader.norm(windows, [field], by="task")
    unknown = f"norms/{'0' * 64}.parquet"
    for path, fault in (
        ("../secret", {"what": "--norm", "given": "../secret", "accepted": "norms/<64 digits>.parquet"}),
        (unknown, {"what": "--norm", "where": root.url, "given": unknown}),
        (grouped.path, {"what": "by of the norm", "where": grouped.path, "given": "task"}),
        (
            relative.path,
            {"what": "transform of the norm", "where": relative.path, "given": f"{__name__}.Relative@1"},
        ),
        (other.path, {"what": "version of the norm", "where": other.path, "accepted": version.id}),
    ):
        with refusal(InvalidRuntime, **fault):
            export(version, "lerobot", open_store(str(tmp_path / "out")), lossy=True, norm=path)
    plain = loader.norm(windows, [field])
    with refusal(InvalidRuntime, what="--norm", given="parquet"):
        export(version, "parquet", open_store(str(tmp_path / "out")), norm=plain.path)
    with refusal(FieldMismatch, what="observation.state.npy", accepted="a numeric feature of the export"):
        export(
            version,
            "lerobot",
            open_store(str(tmp_path / "out")),
            lossy=True,
            norm=loader.norm(windows, [field]).path,
            without=[field],
        )
