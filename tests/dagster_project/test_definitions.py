import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import dagster as dg

from dagster_project.definitions import build_defs, defs
from resources.storage import RootResource

REPOSITORY = Path(__file__).resolve().parents[2]


def python(code: str, cwd: Path = REPOSITORY) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_definitions_load_without_anything_heavy() -> None:
    code = (
        "import dagster_project.definitions, sys;"
        "print([n for n in ('torch', 'great_expectations', 'av', 'polars', 'PIL') if n in sys.modules])"
    )
    assert python(code) == "[]"


def test_the_graph() -> None:
    graph = defs.resolve_asset_graph()
    chain = [dg.AssetKey(["demo", stage]) for stage in ("raw_objects", "samples", "version")]
    assert set(graph.get_all_asset_keys()) == set(chain)
    for before, after in pairwise(chain):
        assert graph.get(after).parent_keys == {before}
    checks = {(check.asset_key, check.name) for check in graph.asset_check_keys}
    assert checks == {(chain[1], "no_unreadable_file"), (chain[2], "expectations")}
    assert all(graph.get_check_spec(check).blocking for check in graph.asset_check_keys)
    assert [sensor.name for sensor in defs.sensors or ()] == ["demo_discovery"]
    assert {job.name for job in defs.resolve_all_job_defs() if not job.name.startswith("__")} == {
        "ingest",
        "release",
    }


def test_overrides_stand_in_for_what_the_environment_says(tmp_path: Path) -> None:
    made = build_defs({"root": RootResource(url=str(tmp_path))})
    assert made.resources is not None
    assert made.resources["root"].url == str(tmp_path)
    assert set(made.resources) == {"root", "landing"}


def test_the_workspace_loads_from_any_directory(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry:\n  enabled: false\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "dagster",
        "definitions",
        "validate",
        "-w",
        str(REPOSITORY / "workspace.yaml"),
    ]
    places = {"DAGSTER_HOME": str(tmp_path), "PENSTOCK_ROOT": str(tmp_path / "root")}
    places |= {"PENSTOCK_LANDING": str(tmp_path / "landing"), "PATH": str(Path(sys.executable).parent)}
    done = subprocess.run(command, cwd=tmp_path, env=places, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "penstock" in done.stdout + done.stderr
