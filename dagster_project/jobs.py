"""The jobs of a dataset, with the tags that the run queue goes by: whose they are, and who goes first.

- dagster/priority: ingest 10, release 5, runs by a person 0, refresh -10. Live ingestion goes before backfill.
- penstock/dataset: of every job
- penstock/tenant: where the dataset has one
- penstock/release: of jobs that publish
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from assets.pages.report import dagster_name
from assets.spec import DatasetSpec

INGEST, RELEASE, REFRESH = 10, 5, -10
"""Priorities. A run without one, as the pages start backfills, has 0."""

Assets = Sequence[dg.AssetsDefinition]


def tags_of(spec: DatasetSpec, priority: int) -> Mapping[str, str]:
    """Return the tags of a run for the dataset."""
    whose = {"penstock/tenant": spec.upkeep.tenant} if spec.upkeep.tenant else {}
    return {"dagster/priority": str(priority), "penstock/dataset": spec.name, **whose}


def publishing_tags(spec: DatasetSpec) -> Mapping[str, str]:
    """Return the tags of a run that makes a version: one at a time of a dataset, where the queue's limits say so."""
    return {**tags_of(spec, RELEASE), "penstock/release": spec.name}


def job_name(spec: DatasetSpec, what: str) -> str:
    """Return `demo_ingest`."""
    return f"{dagster_name(spec.name)}_{what}"


def jobs_of(spec: DatasetSpec, per_batch: Assets, features: Assets, publishing: Assets) -> list[Any]:
    """Return the jobs of a dataset.

    per_batch: assets that one run materializes for a batch; features: those of them that a refresh computes again;
    publishing: assets that a release materializes.
    """
    made = [
        dg.define_asset_job(
            job_name(spec, "ingest"),
            selection=dg.AssetSelection.assets(*per_batch),
            tags=tags_of(spec, INGEST),
            description="One batch: what landed, checked, cut, featurized and put together. One run per batch.",
        ),
        dg.define_asset_job(
            job_name(spec, "release"),
            selection=dg.AssetSelection.assets(*publishing),
            tags=publishing_tags(spec),
            description="Check the batches that are ready, and publish those that pass; then features computed again.",
        ),
    ]
    if features:
        made.append(
            dg.define_asset_job(
                job_name(spec, "refresh"),
                selection=dg.AssetSelection.assets(*features),
                tags=tags_of(spec, REFRESH),
                description="Features of one published batch, computed again; the next release publishes them.",
            )
        )
    return made
