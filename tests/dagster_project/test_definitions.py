import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from assets.gate_settings import Gate
from assets.spec import DatasetSpec, Feature, Upkeep, stage_name
from dagster_project.datasets.demo import SPEC, speech_rate
from dagster_project.definitions import batch_partitions, build_defs, defs
from loader.errors import InvalidSpec
from resources.storage import RootResource
from tests.refusals import refusal

REPOSITORY = Path(__file__).resolve().parents[2]


def python(code: str, cwd: Path = REPOSITORY) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_definitions_load_without_anything_heavy() -> None:
    code = (
        "import dagster_project.definitions, sys;"
        "print([n for n in ('torch', 'great_expectations', 'av', 'polars', 'PIL') if n in sys.modules])"
    )
    assert python(code) == "[]"


def test_graph() -> None:
    graph = defs.resolve_asset_graph()
    features = {stage_name(feature.name) for feature in SPEC.features}
    parents = {
        "raw_objects": set(),
        "media": {"raw_objects"},
        "units": {"media"},
        **{feature: {"units"} for feature in features},
        "samples": {"units", *features},
        "version": {"samples"},
        "refresh": features,
        "training_run": {"version"},
        "quarantine": {"version"},
        "reconciliation": set(),
    }
    found = {
        key.path[-1]: {parent.path[-1] for parent in graph.get(key).parent_keys}
        for key in graph.get_all_asset_keys()
    }
    assert found == parents
    assert all(key.path[0] == "demo" for key in graph.get_all_asset_keys())
    checks = {(check.asset_key.path[-1], check.name) for check in graph.asset_check_keys}
    assert checks == {
        ("media", "readable"),
        ("units", "true_to_source"),
        ("samples", "accounted_for"),
        *(
            ("version", name)
            for name in ("expectations", "blank", "drift", "agreement", "splits", "protected")
        ),
        ("version", "audio_rate"),
        ("refresh", "refresh_gate"),
        ("quarantine", "within_limits"),
    }
    assert all(graph.get_check_spec(check).blocking for check in graph.asset_check_keys)
    assert {sensor.name for sensor in defs.sensors or ()} >= {
        "demo_discovery",
        "demo_training_reports",
        "demo_quarantine_reports",
        "demo_watch",
        "penstock_run_failure",
        "penstock_recovery",
        "penstock_jobs",
    }
    jobs = {job.name for job in defs.resolve_all_job_defs() if not job.name.startswith("__")}
    names = ("ingest", "release", "refresh", "quarantine", "reconcile", "pause_source")
    assert jobs == {f"demo_{name}" for name in names} | {"penstock_tidy", "penstock_collect"}
    by_batch = {key.path[-1] for key in graph.get_all_asset_keys() if graph.get(key).is_partitioned}
    assert by_batch == set(parents) - {"version", "refresh", "quarantine", "reconciliation"}


def test_featurizer_with_other_parameters_is_stale_in_the_graph() -> None:
    tokens = {
        "tokens": defs,
        "other": build_defs(
            datasets=[replace(SPEC, features=(Feature(name="tokens"), Feature(name="phash")))]
        ),
    }
    key = dg.AssetKey(["demo", "feature_tokens"])
    codes = {made.resolve_asset_graph().get(key).code_version for made in tokens.values()}
    assert len(codes) == 2


def test_datasets_stand_side_by_side() -> None:
    other = DatasetSpec(name="my.other-set", features=(Feature(name="picture"),))
    made = build_defs(datasets=[SPEC, other])
    jobs = {job.name for job in made.resolve_all_job_defs() if not job.name.startswith("__")}
    assert {"demo_ingest", "demo_release"} < jobs
    assert len(jobs) == 2 * 6 + 2  # penstock_tidy and penstock_collect are one for all
    assert len({str(batch_partitions(spec).name) for spec in (SPEC, other)}) == 2
    assert len(made.resolve_asset_graph().get_all_asset_keys()) == 14 + 10


def test_assets_have_groups_owners_and_tags() -> None:
    spec = DatasetSpec(
        name="my.birds",
        features=(Feature(name="picture"),),
        upkeep=Upkeep(owners=("team:vision", "ann@lab.example"), tenant="vision"),
    )
    graph = build_defs(datasets=[spec]).resolve_asset_graph()
    groups: dict[str, set[str]] = {}
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        groups.setdefault(node.group_name or "", set()).add(key.path[-1])
        assert node.owners == ["team:vision", "ann@lab.example"]
        assert node.tags["penstock/dataset"] == "my_birds"
        assert node.tags["penstock/tenant"] == "vision"
        assert node.description
    assert groups == {
        "raw": {"raw_objects", "reconciliation"},
        "ingest": {"media", "units", "samples"},
        "features": {"feature_picture"},
        "release": {"version", "refresh", "quarantine", "training_run"},
    }
    assert {"dagster/kind/ffmpeg", "dagster/kind/pillow"} < set(
        graph.get(dg.AssetKey(["my.birds", "media"])).tags
    )


@pytest.mark.parametrize("owner", ["ann", "team:", "team:a b", "ann@", "ann@lab", ""])
def test_owner_that_dagster_refuses_is_refused_by_the_spec(owner: str) -> None:
    with refusal(InvalidSpec, what="owners", given=(owner,)):
        Upkeep(owners=(owner,))


def test_each_check_says_what_it_compares() -> None:
    gate = Gate(
        checks={"speech_rate": speech_rate, "silent": lambda table, baseline: ...}, protected=("eval@1",)
    )
    spec = DatasetSpec(name="birds", gate=gate)
    graph = build_defs(datasets=[spec]).resolve_asset_graph()
    texts = {key.name: graph.get_check_spec(key).description or "" for key in graph.asset_check_keys}
    sentences = [text.partition(". ")[0] for text in texts.values()]
    assert len(set(sentences)) == len(texts) == 5 + 2 + 4 + 1
    assert texts["speech_rate"].startswith("Check that speech is recorded at 16 kHz")
    assert "eval@1" in texts["protected"]
    assert "unique key" in texts["expectations"]
    assert texts["silent"].startswith("The dataset's own check silent, which has no docstring.")
    for name in gate.names:
        assert texts[name].endswith("A check that cannot run fails."), name


def test_overrides_stand_in_for_what_the_environment_says(tmp_path: Path) -> None:
    made = build_defs({"root": RootResource(url=str(tmp_path))})
    assert made.resources is not None
    assert made.resources["root"].url == str(tmp_path)
    assert set(made.resources) == {"root", "landing", "compute", "alerts"}
