"""LeRobot's statistics out of a norm: those of all windows, in the place of means of episodes' quantiles."""

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


def windows_of(version: loader.Version, field: str = STATE) -> Any:
    name = f"{field}.npy"
    return loader.windows(version.select(name), anchor=name, at={name: loader.rows(0, 1)}, columns=("task",))


def test_statistics_are_those_of_the_norm(root: loader.Root, tmp_path: Path) -> None:
    version = root.open("arm@1")
    norm = loader.norm(windows_of(version), [f"{STATE}.npy"])
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
    assert "q50" not in plain[STATE]  # the dataset's own statistics have none
    rest = {"count", "max", "min"}
    assert {name: own[STATE][name] for name in rest} == {name: plain[STATE][name] for name in rest}
    assert {name: one for name, one in own.items() if name != STATE} == {
        name: one for name, one in plain.items() if name != STATE
    }
    with pytest.raises(Conflict):  # another export
        export(version, "lerobot", open_store(str(tmp_path / "plain")), lossy=True, norm=norm.path)


def test_norms_that_do_not_fit_are_refused(root: loader.Root, tmp_path: Path) -> None:
    version, field = root.open("arm@1"), f"{STATE}.npy"
    windows = windows_of(version)
    later = root.exclude("arm@1", [version.keys(np.array([0]))[0]], reason="bad").select(field)
    other = loader.norm(loader.windows(later, anchor=field, at={field: [0]}), [field])
    relative = loader.norm(windows, [field], transform=Relative())
    grouped = loader.norm(windows, [field], by="task")
    for path, message in (
        ("../secret", "the path of a norm in the root is needed"),
        (f"norms/{'0' * 64}.parquet", "has no such norm"),
        (grouped.path, "a norm for each task"),
        (relative.path, r"the space of .*Relative@1; .* stored values"),
        (other.path, r"arm@1 is v-"),
    ):
        with pytest.raises(InvalidRuntime, match=message):
            export(version, "lerobot", open_store(str(tmp_path / "out")), lossy=True, norm=path)
    plain = loader.norm(windows, [field])
    with pytest.raises(InvalidRuntime, match="parquet has no statistics; lerobot has"):
        export(version, "parquet", open_store(str(tmp_path / "out")), norm=plain.path)
    with pytest.raises(FieldMismatch, match="no numeric feature of the export"):
        export(
            version,
            "lerobot",
            open_store(str(tmp_path / "out")),
            lossy=True,
            norm=loader.norm(windows, [field]).path,
            without=[field],
        )
