"""Metadata of a version's page in Dagster: its card, batches, runs, commands and columns, and its checks."""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import dagster as dg

import loader
from loader.dataset.names import card_folder
from loader.dataset.versions.version import Version
from loader.errors import ObjectNotFound, PenstockError
from penstock.card.build import build_card, read_card, save_card
from penstock.card.render import table
from penstock.text import Markdown, markdown_table, markdown_text
from resources.viewer_links import version_page

from ..pages import plots
from ..pages.report import (
    Metadata,
    code_block,
    exclusions_metadata,
    link,
    plot_metadata,
    table_metadata,
    viewer_metadata,
)
from ..pages.table_columns import version_columns
from ..samples.excluded_units import excluded_by_reason
from .lag import lag_metadata
from .release import Release

if TYPE_CHECKING:
    from ..checks import CheckResult
    from ..gate_settings import Gate
    from ..spec import DatasetSpec
    from .gate_run import Audit


MAX_SHEET_BYTES = 40_000
"""Most bytes of an image, before base64, in Dagster's event log."""
_MOST_SHEETS = 3
_MESSAGE_CHARS = 1000
_WIDTHS_PX = (640, 480, 360, 240)  # tried in turn, until the image is small enough


def version_metadata(release: Release, history: Mapping[int, int]) -> Metadata:
    """Return the metadata of the asset [dataset, version]. history: version number -> samples."""
    version = release.version
    groups = []
    nbytes: dict[str, int] = {}
    for name, body in sorted(version.manifest["groups"].items()):
        fields = ", ".join(sorted(body["field_nbytes"]))
        groups.append((name, body["n_rows"], body["nbytes"], fields))
        nbytes[name] = body["nbytes"]
    approvals = []
    for published in release.versions:
        approval = published.manifest["producer"].get("approval")
        if approval:
            checks = ", ".join(approval["checks"])
            approvals.append((published.name, approval["by"], approval["reason"], checks))
    published_batches = ", ".join(release.published) or "none: nothing was new"
    held_back = ", ".join(release.held_back) or "none"
    n_samples = dg.MetadataValue.int(len(version))
    group_table = markdown_table(("group", "samples", "bytes", "fields"), groups)
    shown: Metadata = {
        "version": dg.MetadataValue.text(version.name),
        "id": dg.MetadataValue.text(version.id),
        "samples": n_samples,
        "published_batches": dg.MetadataValue.text(published_batches),
        "approved": table_metadata(("version", "approved by", "reason", "though these failed"), approvals),
        "held_back_batches": dg.MetadataValue.text(held_back),
        "groups": dg.MetadataValue.md(group_table),
        "dagster/row_count": n_samples,
    }
    shown |= plot_metadata(plots.growth(history, nbytes))
    return shown


def release_metadata(
    root: loader.Root,
    release: Release,
    spec: "DatasetSpec | None",
) -> Metadata:
    """Return all metadata of a release, except for its card. spec: for its featurizers' columns."""
    dataset = release.version.dataset
    n_samples = sizes(root, dataset)
    excluded = excluded_by_reason(root.store, dataset)
    shown = version_metadata(release, n_samples)
    shown |= version_links(release, spec)
    shown |= lag_metadata(root, release)
    shown |= exclusions_metadata(excluded)
    return shown


def sizes(
    root: loader.Root,
    dataset: str,
    newest: int = plots.MAX_VERSIONS,
) -> dict[int, int]:
    """Return version number -> live samples, for the newest unretired versions. Costs a manifest each."""
    living = [record for record in root.state.versions(dataset) if record.retired is None]
    n_samples: dict[int, int] = {}
    for record in living[-newest:]:
        version = Version.of_record(root.store, record)
        n_samples[record.number] = len(version)
    return n_samples


def card_metadata(root: loader.Root, version: loader.Version) -> Metadata:
    """Return the version's card as metadata, storing it if there is none. An error takes its place."""
    try:
        document = stored_card(root, version)
        sheets = _sheets(root, version, document)
    except PenstockError as error:
        message = (
            f"the dataset card could not be made: {type(error).__name__}: {error}; repair it, then: "
            f"penstock card {version.name} --save"
        )
        return {"card": dg.MetadataValue.text(message[:_MESSAGE_CHARS])}
    folder = card_folder(version.dataset, version.number, version.id)
    page = f"{root.url}/{folder}/card.html"
    shown: Metadata = {
        "card": dg.MetadataValue.md(card_markdown(document)),
        "card_html": dg.MetadataValue.path(page),
    }
    plot = plots.counts(_distributions(document))
    if plot:
        shown["distributions"] = dg.MetadataValue.md(plot)
    for kind, body in sheets.items():
        image = f"![{kind} examples](data:image/jpeg;base64,{body})"
        shown[f"examples {kind}"] = dg.MetadataValue.md(image)
    return shown


def stored_card(root: loader.Root, version: loader.Version) -> dict[str, Any]:
    """Return the document of the version's card; builds and saves it if there is none.

    Raises: StoreError; Corrupt; MissingDependency.
    """
    try:
        return read_card(root.store, version)
    except ObjectNotFound:
        card = build_card(root, version)
        return save_card(root.store, card).document


def card_markdown(document: Mapping[str, Any]) -> str:
    """Return the card's warnings and table of kinds as Markdown."""
    splits = list(document["splits"])
    rows = []
    for kind in document["kinds"]:
        row = [kind["name"], f"{kind['samples']:,}"]
        for split in splits:
            n_samples = kind["splits"].get(split, 0)
            row.append(f"{n_samples:,}")
        hours = ""  # of images and text
        if kind["hours"] is not None:
            hours = f"{kind['hours']:.2f}"
        row.append(hours)
        rows.append(row)
    header = ["kind", "samples", *splits, "hours"]
    blocks = list[str]()
    for warning in document["warnings"]:
        blocks.append(f"**{markdown_text(warning)}**")
    blocks.append(table(header, rows, right=1))
    left_out = document["excluded_samples"]
    if left_out:
        blocks.append(f"{left_out:,} samples are left out.")
    return "\n\n".join(blocks)


def _distributions(document: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return distribution -> value -> number of samples. document: of the version's card."""
    licences: dict[str, int] = {}
    for licence in document["licences"]["counts"]:
        licences[licence["name"]] = licence["n"]
    n_unknown = document["licences"]["unknown"]
    if n_unknown:
        licences["unknown"] = n_unknown
    return {
        "kind": {kind["name"]: kind["samples"] for kind in document["kinds"]},
        "split": dict(document["splits"]),
        "licence": licences,
    }


def _sheets(
    root: loader.Root,
    version: loader.Version,
    document: Mapping[str, Any],
) -> dict[str, str]:
    """Return kind of media -> sheet of examples, a small JPEG in base64. document: of the version's card."""
    folder = card_folder(version.dataset, version.number, version.id)
    names = sorted(document["pictures"].values())  # examples-<kind>.jpg
    sheets: dict[str, str] = {}
    for name in names[:_MOST_SHEETS]:
        sheet = root.store.get(f"{folder}/{name}").data
        small = _shrink_sheet(sheet)
        if small:
            kind = name.removeprefix("examples-").removesuffix(".jpg")
            sheets[kind] = base64.b64encode(small).decode()
    return sheets


def _shrink_sheet(sheet: bytes) -> bytes:
    """Return a JPEG of at most `MAX_SHEET_BYTES`; empty if even the narrowest is larger."""
    from PIL import Image

    with Image.open(io.BytesIO(sheet), formats=("JPEG",)) as picture:
        picture.load()
        for width_px in _WIDTHS_PX:
            scale = width_px / picture.width
            height_px = max(1, round(picture.height * scale))
            resized = picture.resize((width_px, height_px), Image.Resampling.LANCZOS)
            sink = io.BytesIO()
            resized.save(sink, "JPEG", quality=75, optimize=True)
            if sink.tell() <= MAX_SHEET_BYTES:
                return sink.getvalue()
    return b""


def version_links(
    release: Release,
    spec: "DatasetSpec | None" = None,
) -> Metadata:
    """Return the batches, runs, commands and columns of a version. spec: for its featurizers' columns."""
    rows = []
    for batch, version in zip(release.published, release.versions, strict=True):
        page = version_page(version.dataset, version.number)
        producer = version.manifest["producer"]
        run_id = str(producer.get("cut_by_run_id", ""))
        row = (
            link(version.name, page),
            _batch_link(version, batch),
            _run_link(run_id),
        )
        rows.append(row)
    newest = release.version
    shown: Metadata = {
        "made_of": table_metadata(("version", "batch", "made by"), rows, "nothing new"),
        "to_the_samples": dg.MetadataValue.md(_sample_commands(newest)),
    }
    shown |= viewer_metadata(version_page(newest.dataset, newest.number))
    shown |= version_columns(newest.dataset, newest.samples(), spec)
    return shown


def publication_observation(version: loader.Version) -> dg.AssetObservation:
    """Return the observation that links a batch's samples to the version that contains them."""
    samples_key = dg.AssetKey([version.dataset, "samples"])
    version_key = dg.AssetKey([version.dataset, "version"])
    batch = version.manifest["producer"]["batch"]
    return dg.AssetObservation(
        asset_key=samples_key,
        partition=str(batch),
        description=f"published as {version.name}",
        metadata={
            "version": dg.MetadataValue.text(version.name),
            "id": dg.MetadataValue.text(version.id),
            "version_asset": dg.MetadataValue.asset(version_key),
        },
    )


def _batch_link(version: loader.Version, batch: str) -> Markdown:
    # A link without a host leads to the webserver that shows it.
    dataset = quote(version.dataset, safe="")
    partition = quote(batch, safe="")
    text = markdown_text(batch)
    return Markdown(f"[{text}](/assets/{dataset}/samples?view=partitions&partition={partition})")


def _run_link(run_id: str) -> Markdown:
    if not run_id:
        return Markdown("")
    short = markdown_text(run_id[:8])  # as Dagster's pages shorten it
    target = quote(run_id, safe="")
    return Markdown(f"[{short}](/runs/{target})")


def _sample_commands(version: loader.Version) -> str:
    url = version.store.url
    commands = [f"penstock show {version.name} --root {url}"]
    if version.number > 1:
        before = f"{version.dataset}@{version.number - 1}"
        commands.append(f"penstock diff {before} {version.name} --root {url}")
    shell_block = code_block("sh", *commands)
    python = f'loader.Root("{url}").open("{version.id}").samples().collect()'
    python_block = code_block("python", python)
    return f"{shell_block}\n{python_block}"


def check_events(
    gate: "Gate",
    audits: "list[Audit]",
    url: str,
    *,
    stopping: bool,
) -> Iterator[dg.AssetCheckResult]:
    """Yield the result of each of the gate's checks, over all audited batches."""
    for position, name in enumerate(gate.names):
        results = [audit.results[position] for audit in audits]
        failed = [result for result in results if not result.passed]
        severity = dg.AssetCheckSeverity.WARN
        # A held-back batch is only a warning if others go ahead: an error would fail the run that publishes them.
        if stopping and any(result.stops for result in failed):
            severity = dg.AssetCheckSeverity.ERROR
        yield dg.AssetCheckResult(
            check_name=name,
            passed=not failed,
            severity=severity,
            metadata=_check_shown(name, audits, results, url),
        )


def _check_shown(
    name: str,
    audits: "Sequence[Audit]",
    results: "Sequence[CheckResult]",
    url: str,
) -> Metadata:
    """Return a check's metadata. results: the check's result in each audit."""
    shown: Metadata = {"batches": dg.MetadataValue.int(len(audits))}
    explanations = list[str]()
    for audit, result in zip(audits, results, strict=True):
        if not result.passed:
            explanations.append(f"{audit.record.partition}: {result.explanation}")
    if explanations:
        shown["failed"] = dg.MetadataValue.text("; ".join(explanations))
    for audit, result in zip(audits, results, strict=True):
        batch = audit.record.partition
        explanation = f"{markdown_text(result.explanation)}\n\n{result.table_markdown}"
        shown[f"batch {batch}"] = dg.MetadataValue.md(explanation)
        report = audit.record.body.get("report")
        if report:
            shown[f"report {batch}"] = dg.MetadataValue.path(f"{url}/{report}")
        if result.value is not None:
            # the newest batch's: Dagster plots it over the runs
            shown["value"] = dg.MetadataValue.float(result.value)
    if name == "drift":
        for audit in audits:
            if audit.picture:
                shown[f"plot {audit.record.partition}"] = dg.MetadataValue.md(audit.picture)
    return shown
