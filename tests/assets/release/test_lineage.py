"""From a step to every run that made its samples, from a version's page to its samples, and back."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import loader
from assets.pages.table_columns import LINEAGE, SCHEMA
from assets.pipeline.stages import require_published
from assets.pipeline.tables import read_table
from assets.spec import DatasetSpec, Feature
from penstock.cli import main
from penstock.lineage import pipeline_runs

SPEC = DatasetSpec(name="demo", features=(Feature(name="picture"), Feature(name="phash")))
STAGES = ("raw_objects", "media", "units", "feature_picture", "feature_phash", "samples")
Run = Callable[..., dg.ExecuteInProcessResult]


@pytest.fixture
def released_batch(run: Run, arrive: Callable[[Path], str], landing: Path) -> tuple[str, Any, Any]:
    """(batch, its ingest, the release)."""
    batch = arrive(landing)
    ingest, release = run("ingest", SPEC, batch), run("release", SPEC)
    assert ingest.success
    assert release.success
    return batch, ingest, release


def event(result: dg.ExecuteInProcessResult, stage: str) -> dg.AssetMaterialization:
    (found,) = result.asset_materializations_for_node(f"demo__{stage}")
    return found


def test_table_has_every_run_code_and_data_version(released_batch: Any, root: loader.Root) -> None:
    batch, ingest, _ = released_batch
    record = require_published(root.store, "demo", "samples", batch)
    rows = read_table(root.store, record.files["lineage"])
    data = {stage: event(ingest, stage).tags["dagster/data_version"] for stage in STAGES}
    code = {stage: event(ingest, stage).tags["dagster/code_version"] for stage in STAGES}
    told = {row["asset_key"].split("/")[1]: row for row in rows}
    assert told.keys() == set(STAGES)
    for stage, row in told.items():
        assert (row["run_id"], row["partition"]) == (ingest.run_id, batch)
        assert row["data_version"] == data[stage]
        if not stage.startswith("feature_"):  # a featurizer's record has its parameters' hash too
            assert row["code_version"] == code[stage]
    stages = {(row["out_id"], row["in_id"]) for row in rows if row["out_kind"] == "stage"}
    assert stages == {
        *(("samples", stage) for stage in STAGES[:-1]),
        *(("feature_picture", "units"), ("feature_phash", "units"), ("units", "media")),
        *(("media", "raw_objects"), ("raw_objects", "manifest")),
    }
    for row in root.open("demo@1").samples().collect().to_dicts():
        (unit,) = [one["in_id"] for one in rows if (one["out_kind"], one["out_id"]) == ("sample", row["key"])]
        assert unit == row["unit_id"]
        assert {one["in_id"] for one in rows if one["out_id"] == unit} == {row["raw_sha256"]}
        assert {one["record"] for one in rows if one["out_id"] == unit} == {
            require_published(root.store, "demo", "units", batch).path
        }


def test_data_versions_are_those_of_their_inputs(released_batch: Any, run: Run) -> None:
    batch, ingest, release = released_batch
    again = run("ingest", SPEC, batch)
    for stage in STAGES:
        assert (
            event(again, stage).tags["dagster/data_version"]
            == event(ingest, stage).tags["dagster/data_version"]
        )
    version = event(release, "version")
    assert version.tags["dagster/data_version"] == version.metadata["id"].value


def test_explain_goes_to_every_run(
    released_batch: Any, root: loader.Root, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    batch, ingest, release = released_batch
    assert run(["feature_phash"], SPEC, batch).success  # found as it was: its record stays that of the ingest
    view = root.open("demo@1").select("jpg", where_present=True)
    plan = loader.plan({"p": view}, seed=1, global_batch=2)
    hashed = plan.save(root)
    found = pipeline_runs(root, loader.explain(plan, 0))
    assert len(found) == 2
    for runs in found:
        assert [one.asset_key for one in runs[:3]] == ["demo/raw_objects", "demo/media", "demo/units"]
        assert {one.asset_key for one in runs} == {*(f"demo/{stage}" for stage in STAGES), "demo/version"}
        assert [one.run_id for one in runs] == [*[ingest.run_id] * 6, release.run_id]
        assert runs[-1].data_version == root.open("demo@1").id
        assert all(root.store.head(one.record) for one in runs)
    arguments = ["explain", hashed, "--step", "0", "--slot", "1", "--root", root.url]
    assert main([*arguments, "--ui", "http://dagster:3000/"]) == 0
    text = capsys.readouterr().out
    assert text.count(f"http://dagster:3000/runs/{ingest.run_id}") == 6
    assert f"http://dagster:3000/runs/{release.run_id}" in text
    assert main([*arguments, "--json"]) == 0
    (body,) = json.loads(capsys.readouterr().out)
    assert [one["run_id"] for one in body["made_by"]] == [*[ingest.run_id] * 6, release.run_id]


def test_what_no_pipeline_made_has_no_runs(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "plain")
    with root.write("demo") as writer:
        for number in range(4):
            writer.add(str(number), {"cls": number})
    plan = loader.plan({"p": root.open("demo@1")}, seed=1, global_batch=2)
    assert pipeline_runs(root, loader.explain(plan, 0)) == [(), ()]


def test_columns_are_followed_where_dagster_shows_them(released_batch: Any) -> None:
    _, ingest, release = released_batch
    metadata = {stage: event(ingest, stage).metadata for stage in STAGES}
    metadata["version"] = event(release, "version").metadata
    schemas = {stage: {one.name for one in told[SCHEMA].value.columns} for stage, told in metadata.items()}
    deps = {stage: told[LINEAGE].value.deps_by_column for stage, told in metadata.items() if LINEAGE in told}
    assert deps.keys() == {*STAGES[2:], "version"}
    for stage, columns in deps.items():
        for column, sources in columns.items():
            assert column in schemas[stage]
            for source in sources:
                assert source.asset_key.path[0] == "demo"
                # what a unit's sample says of itself beside the table `units` is in no table of its own
                if source.asset_key.path[1] != "units":
                    assert source.column_name in schemas[source.asset_key.path[1]]

    def way_back(column: str) -> list[str]:
        (source,) = deps["version"][column]
        (above,) = deps["samples"][source.column_name]
        return [above.asset_key.path[1], above.column_name]

    assert way_back("raw_uri") == ["raw_objects", "uri"]
    assert way_back("source_width_px") == ["media", "upright_width_px"]
    assert way_back("luma_mean_ratio") == ["feature_picture", "luma_mean_ratio"]
    assert way_back("width_px")[0] == "units"


def test_pages_lead_to_each_other(
    released_batch: Any, root: loader.Root, instance: dg.DagsterInstance
) -> None:
    batch, ingest, release = released_batch
    shown = event(release, "version").metadata
    assert f"[{batch}](/assets/demo/samples?view=partitions&partition={batch})" in shown["made_of"].value
    assert f"(/runs/{ingest.run_id})" in shown["made_of"].value
    assert root.open("demo@1").id in shown["to_the_samples"].value
    wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey(["demo", "samples"]), asset_partitions=[batch])
    newest = instance.fetch_observations(wanted, limit=1).records[0].event_log_entry.asset_observation
    assert newest is not None
    assert newest.metadata["version"].value == "demo@1"
    assert newest.metadata["id"].value == root.open("demo@1").id
    assert newest.metadata["version_asset"].value == dg.AssetKey(["demo", "version"])
