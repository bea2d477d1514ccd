"""The way from a version's page to its samples and the runs that made them, and back from a batch's."""

from typing import TYPE_CHECKING
from urllib.parse import quote

import dagster as dg

import loader
from penstock.text import markdown_text
from resources.alerts import version_page

from ..pages.report import Markdown, Metadata, code_block, link, markdown_table, viewer_metadata
from ..pages.table_columns import version_columns

if TYPE_CHECKING:
    from ..spec import DatasetSpec
    from .version_asset import Release


def version_links(release: "Release", spec: "DatasetSpec | None" = None) -> Metadata:
    """Return the metadata of a version: its batches and their runs, ways to its samples, its columns.

    spec: of the dataset, whose featurizers describe their columns.
    """
    version = release.version
    rows = [
        (
            link(made.name, version_page(made.dataset, made.number)),
            _batch_link(made, batch),
            _run_link(str(made.manifest["producer"].get("cut_by_run_id", ""))),
        )
        for batch, made in zip(release.published, release.versions, strict=True)
    ]
    table = markdown_table(("version", "batch", "made by"), rows) if rows else "nothing new"
    return (
        {
            "made_of": dg.MetadataValue.md(table),
            "to_the_samples": dg.MetadataValue.md(_to_the_samples(version)),
        }
        | viewer_metadata(version_page(version.dataset, version.number))
        | version_columns(version.dataset, version.samples(), spec)
    )


def published_in(version: loader.Version) -> dg.AssetObservation:
    """Return the observation for the page of a batch's samples: the version that they became."""
    return dg.AssetObservation(
        asset_key=dg.AssetKey([version.dataset, "samples"]),
        partition=str(version.manifest["producer"]["batch"]),
        description=f"published as {version.name}",
        metadata={
            "version": dg.MetadataValue.text(version.name),
            "id": dg.MetadataValue.text(version.id),
            "version_asset": dg.MetadataValue.asset(dg.AssetKey([version.dataset, "version"])),
        },
    )


def _batch_link(version: loader.Version, batch: str) -> Markdown:
    # A link without a host leads to the webserver that shows it, wherever that is.
    place = "/".join(quote(part, safe="") for part in (version.dataset, "samples"))
    partition = quote(batch, safe="")
    return Markdown(f"[{markdown_text(batch)}](/assets/{place}?view=partitions&partition={partition})")


def _run_link(run_id: str) -> Markdown:
    return Markdown(f"[{markdown_text(run_id[:8])}](/runs/{quote(run_id, safe='')})" if run_id else "")


def _to_the_samples(version: loader.Version) -> str:
    """Return commands that lead from the version to its samples."""
    url = version.store.url
    commands = [f"penstock show {version.name} --root {url}"]
    if version.number > 1:
        commands.append(f"penstock diff {version.dataset}@{version.number - 1} {version.name} --root {url}")
    python = f'loader.Root("{url}").open("{version.id}").samples().collect()'
    return f"{code_block('sh', *commands)}\n{code_block('python', python)}"
