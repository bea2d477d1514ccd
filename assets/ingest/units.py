"""units: admitted objects, cut into samples' media and written at once as parts of an open transaction.

Units of one kind with the same fields are one part (a clip with sound has fields that a silent one has not). The
transaction stays open: feature stages add groups to these parts, and `version` commits it, or nobody does.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

import loader
from loader.dataset.shards.part import part_rows
from loader.errors import StageNotPublished
from loader.storage import Store
from penstock.class_names import class_names
from penstock.compute.pool import Compute, Progress
from penstock.stages import StageRecord, Upstream, append_record, current_record, fingerprint
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource

from ..arrivals.open_source import place_of_batch
from ..media.cutters import CUTTERS
from ..media.policy import policy_words
from ..pages.report import check_metadata, dagster_name, units_metadata
from ..pages.stage_events import as_failures, check_and_materialize
from ..spec import DatasetSpec
from ..stages import MEDIA, RAW_OBJECTS, UNITS, open_transaction, require_published, require_read
from ..tables import read_table, write_table
from . import recuts
from .clip_staging import clear_staging, staging_of
from .cut import CutUnit, cut_objects, n_short_shots, policy_fingerprint, untrue_reason
from .media import refusal_counts
from .time_limits import Tell, log

CODE_VERSION = "2"
CHECK = "true_to_source"
CAPTION = "caption.txt"
"""Field of the text that came with an object, or with a segment of it, in a group of its own."""

Row = dict[str, Any]


def units_stage(
    root: "loader.Root",
    landing: Store,
    compute: Compute,
    spec: DatasetSpec,
    *,
    partition: str,
    run_id: str,
    progress: Progress | None = None,
    tell: Tell = log.info,
) -> tuple[StageRecord, list[Row], list[Row]]:
    """Cut a batch and publish its parts; return the record, the rows of its units, and those of refused objects.

    Raw objects that the newest version has samples of are dropped as duplicates. A batch with the same media under the
    same policy is not cut again, unless its transaction was aborted. tell: of time limits.

    Raises: StageNotPublished; StoreError.
    """
    store = root.store
    media = require_published(store, spec.name, MEDIA, partition)
    wanted = fingerprint(
        CODE_VERSION, media.fingerprint, media.r, policy_fingerprint(spec.policy), _splits(spec)
    )
    if spec.format:
        wanted = fingerprint(wanted, spec.format, str(spec.in_place))
    newest = current_record(store, spec.name, UNITS, partition)
    if newest is not None and newest.fingerprint == wanted and _still_good(root, newest):
        return newest, read_table(store, newest.files[UNITS]), read_table(store, newest.files["refusals"])
    landed = require_published(store, spec.name, RAW_OBJECTS, partition)
    require_read(media, landed)
    raws = {row["key"]: row for row in read_table(store, landed.files[RAW_OBJECTS])}
    audits = read_table(store, media.files[MEDIA])
    earlier = newest.r if newest else 0
    txn = open_transaction(root, spec.name, UNITS, partition, wanted, str(earlier), gated=True)
    reason, short, foreign = "", 0, None
    if spec.format:
        from .foreign_samples import write_walked  # which media do without

        labels, told = published_labels(root, spec.name), _provenance(spec, partition, run_id)
        with root.heartbeat(txn):
            there = published_objects(root, spec.name)
            parts, rows, refusals, foreign = write_walked(root, landing, spec, txn, audits, raws, there, told)
    else:
        with root.heartbeat(txn), tempfile.TemporaryDirectory(prefix="penstock-cut-") as scratch:
            cut, refusals = cut_objects(
                landing,
                compute,
                spec,
                audits,
                raws,
                Path(scratch),
                published_objects(root, spec.name),
                progress,
                staging_of(store, spec.name, partition, spec.policy),
                tell,
            )
            reason, short = untrue_reason(refusals, len(audits), spec.max_untrue_rate), n_short_shots(cut)
            labels = labels_of(cut, published_labels(root, spec.name))
            told = {"partition": partition, "run_id": run_id}
            made = [] if reason else write_parts(root, spec, txn, cut, labels, **told)
        parts = [(members[0].kind, part) for part, members in made]
        rows = [unit_row(unit, part) for part, members in made for unit in members]
    if not parts:
        root.abort(txn, f"{CHECK}: {reason}"[:500] if reason else "the batch holds nothing new")
    kinds = [] if spec.format else [kind for kind, _ in parts]
    record = StageRecord(
        dataset=spec.name,
        stage=UNITS,
        partition=partition,
        verdict="failed" if reason else "published",
        reason=reason,
        run_id=run_id,
        code_version=CODE_VERSION,
        fingerprint=wanted,
        files={
            UNITS: write_table(store, spec.name, UNITS, partition, rows),
            "refusals": write_table(store, spec.name, "refusals", partition, refusals),
        },
        upstream=(Upstream(stage=media.stage, partition=partition, r=media.r),),
        counts=refusal_counts(refusals)
        | {
            "units": len(rows),
            "nbytes": _nbytes([part for _, part in parts]),
            "short_shots": short,
        },
        body={
            "txn": txn,
            "labels": labels,
            "parts": [{"kind": kind, "part": part.to_json()} for kind, part in parts],
            "policy": policy_words(spec.policy, kinds),
            **({"foreign": foreign} if foreign else {}),
        },
    )
    published = append_record(store, record, after=earlier)
    clear_staging(store, spec.name, partition)
    if newest is not None and newest.verdict == "published":
        recuts.clear(store, spec.name, partition, newest.body["txn"])
    return (
        published,
        read_table(store, published.files[UNITS]),
        read_table(store, published.files["refusals"]),
    )


def write_parts(
    root: "loader.Root",
    spec: DatasetSpec,
    txn: str,
    units: Sequence[CutUnit],
    labels: Sequence[str],
    *,
    partition: str,
    run_id: str,
) -> list[tuple["loader.Part", list[CutUnit]]]:
    """Write one part per kind and set of fields, and return each with its units."""
    provenance = _provenance(spec, partition, run_id)
    number = {label: position for position, label in enumerate(labels)}
    layouts: dict[tuple[str, tuple[str, ...]], list[CutUnit]] = {}
    for unit in units:
        layouts.setdefault((unit.kind, field_names(unit)), []).append(unit)
    parts = []
    for place, ((kind, fields), members) in enumerate(sorted(layouts.items())):
        groups = {**members[0].unit.groups, CAPTION: "captions"}
        samples = (
            (
                unit.key,
                sample_fields(unit, number),
                _metadata(unit),
                _source(spec, unit) | provenance | {"split": spec.split_of(_identity(spec, unit))},
            )
            for unit in members
        )
        used = {field: group for field, group in groups.items() if field in fields}
        name = f"{kind}_{place}"
        parts.append((loader.write_part(root, txn, samples, group=kind, groups=used, name=name), members))
    return parts


def _provenance(spec: DatasetSpec, partition: str, run_id: str) -> dict[str, str]:
    return {
        "run_id": run_id,
        "asset_key": f"{spec.name}/{UNITS}",
        "partition": partition,
        "code_version": CODE_VERSION,
    }


def field_names(unit: CutUnit) -> tuple[str, ...]:
    """Return the fields that `sample_fields` gives, sorted; no file is read."""
    cutter = CUTTERS[unit.kind]
    names = {*unit.unit.fields, cutter.facts} - {"json"}
    if cutter.has_label:
        names.add("cls")
    if unit.raw["text"] or unit.raw["title"]:
        names.add(CAPTION)
    return tuple(sorted(names))


def sample_fields(unit: CutUnit, number: Mapping[str, int]) -> dict[str, Any]:
    """Return field -> value of one sample, its files read. number: label -> class."""
    cutter, raw = CUTTERS[unit.kind], unit.raw
    fields: dict[str, Any] = {
        name: value.read_bytes() if isinstance(value, Path) else value
        for name, value in unit.unit.fields.items()
    }
    told = {
        name: raw[name] for name in ("label", "title", "text", "licence", "author", "origin") if raw[name]
    }
    fields[cutter.facts] = {**fields.pop("json", {}), "raw": raw["key"], **told}
    if cutter.has_label:
        fields["cls"] = number[raw["label"]]
    if CAPTION not in fields and (caption := raw["text"] or raw["title"]):
        fields[CAPTION] = caption
    return fields


def _metadata(unit: CutUnit) -> dict[str, Any]:
    raw = unit.raw
    facts = {"kind": unit.kind, "label": raw["label"], "licence": raw["licence"], "mime": raw["mime"]}
    source_rate = unit.audit.get("sample_rate_hz")
    if source_rate is not None:
        facts["source_sample_rate_hz"] = source_rate
    if unit.kind in ("image", "video"):  # by which the better of two copies is kept
        facts["source_width_px"] = unit.audit["upright_width_px"]
        facts["source_height_px"] = unit.audit["upright_height_px"]
        facts["source_nbytes"] = raw["nbytes"]
    if unit.kind == "video":
        facts["source_duration_s"] = unit.audit["duration_s"]
    return {**facts, **unit.unit.metadata}


def _source(spec: DatasetSpec, unit: CutUnit) -> dict[str, str]:
    raw = unit.raw
    place = {"raw_start": unit.unit.start, "raw_end": unit.unit.end} if unit.unit.end else {}
    subject = {"subject": _identity(spec, unit)} if spec.split_by == "subject" and raw["label"] else {}
    return (
        place
        | subject
        | {
            "source_key": raw["key"],
            "unit_id": unit.unit_id,
            "raw_uri": raw["uri"],
            "raw_key": raw["key"],
            "raw_etag": raw["etag"],
            "raw_sha256": raw["sha256"],
        }
    )


def _identity(spec: DatasetSpec, unit: CutUnit) -> str:
    """Return the value that decides the split: the raw object's sha256, or the subject (the folder it landed in)."""
    return str(unit.raw["label"] if spec.split_by == "subject" else unit.raw["sha256"])


def unit_row(unit: CutUnit, part: "loader.Part") -> Row:
    """Return the unit's row of the `units` table."""
    return {
        "key": unit.key,
        "unit_id": unit.unit_id,
        "kind": unit.kind,
        "part": part.id,
        "raw_key": unit.raw["key"],
        "raw_sha256": unit.raw["sha256"],
        "start": unit.unit.start,
        "end": unit.unit.end,
    }


def labels_of(units: Sequence[CutUnit], known: Sequence[str]) -> list[str]:
    """Return the class names: `known` first, so that no number changes its meaning; then new ones, sorted."""
    found = {unit.raw["label"] for unit in units if CUTTERS[unit.kind].has_label}
    return [*known, *sorted(found - set(known))]


def published_labels(root: "loader.Root", dataset: str) -> list[str]:
    """Return the class names of the newest version, in the order of their numbers; none before the first."""
    return class_names(root.store, root.state.versions(dataset)) or []


def clash(root: "loader.Root", dataset: str, labels: Sequence[str], parts: Sequence["loader.Part"]) -> str:
    """Return why waiting parts do not fit what was published since they were cut, or "".

    Numbers mean another class now, the same raw bytes are published, or a group has other fields.
    """
    known = published_labels(root, dataset)
    shared = min(len(known), len(labels))
    if known[:shared] != list(labels[:shared]):
        return f"it was cut with the classes {list(labels)}, the newest version has {known}"
    if reason := _other_groups(root, dataset, parts):
        return reason
    published = published_objects(root, dataset)
    for part in parts if published else ():
        for row in part_rows(root.store, part):
            if row["raw_sha256"] in published:
                return f"{row['raw_key']!r} has the same bytes as {published[row['raw_sha256']]}"
    return ""


def _other_groups(root: "loader.Root", dataset: str, parts: Sequence["loader.Part"]) -> str:
    """Return why the parts' groups are not those of the newest version, or ""."""
    newest = root.state.newest(dataset)
    groups = root.open(newest.id).manifest["groups"] if newest else {}
    for shard in (shard for part in parts for shard in part.shards):
        if shard.group in groups and set(shard.field_nbytes) != set(groups[shard.group]["field_nbytes"]):
            return f"group {shard.group!r} has {sorted(groups[shard.group]['field_nbytes'])} by now"
    return ""


def published_objects(root: "loader.Root", dataset: str) -> dict[str, str]:
    """Return sha256 of every raw object that the newest version has samples of -> words for where."""
    newest = root.state.newest(dataset)
    if newest is None:
        return {}
    table = root.open(newest.id).samples().select("raw_sha256", "raw_key").unique().collect()
    return {sha256: f"{key!r} in {newest.name}" for sha256, key in table.iter_rows()}


def _splits(spec: DatasetSpec) -> list[str]:
    shares = [f"{name}={share}" for name, share in sorted(spec.splits.items())]
    return [spec.split_by, *shares, *([f"as {spec.rebuild_of}"] if spec.rebuild_of else [])]


def _still_good(root: "loader.Root", record: StageRecord) -> bool:
    """Return whether the parts of an earlier attempt can stand: they are published, or still can be."""
    if record.verdict != "published":
        return False
    if not record.body["parts"]:
        return True
    status = root.state.txns[record.body["txn"]].status
    parts = [loader.Part.from_json(entry["part"]) for entry in record.body["parts"]]
    return status == "committed" or (
        status != "aborted" and not clash(root, record.dataset, record.body["labels"], parts)
    )


def _nbytes(parts: Sequence["loader.Part"]) -> int:
    return sum(shard.nbytes for part in parts for shard in part.shards)


_CHECK_SAYS = (
    "What was cut was compared with its source: times, orientation, colours, the place and the channels of sound. "
    "Objects that differ are left out, by the name of what is wrong; a batch with more of them than the dataset allows "
    "is not written, now or later, until it is cut again."
)
UnitsEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


def units_asset(spec: DatasetSpec, batches: dg.PartitionsDefinition[str]) -> dg.AssetsDefinition:
    """Return the asset [dataset, units] with its check."""
    key = dg.AssetKey([spec.name, UNITS])

    @dg.asset(
        key=key,
        deps=[dg.AssetKey([spec.name, MEDIA])],
        partitions_def=batches,
        code_version=CODE_VERSION,
        group_name=dagster_name(spec.name),
        pool=dagster_name(spec.name),
        kinds={"ffmpeg", "webdataset"},
        check_specs=[dg.AssetCheckSpec(CHECK, asset=key, blocking=True, description=_CHECK_SAYS)],
        description="Clips, upright photos, segments of sound and documents, written as parts of a transaction.",
    )
    def units(
        context: dg.AssetExecutionContext,
        root: RootResource,
        landing: LandingResource,
        compute: ComputeResource,
    ) -> Iterator[UnitsEvent]:
        batch = context.partition_key
        with root.opened() as opened, compute.opened() as engine:
            place = place_of_batch(landing, spec.sources, opened.store, spec.name, batch)
            told: Any = {"partition": batch, "run_id": context.run.run_id, "tell": context.log.info}
            with as_failures(StageNotPublished), place as source:
                record, rows, refusals = units_stage(opened, source, engine, spec, **told)
        shown = units_metadata(record, rows, refusals)
        yield from check_and_materialize(record, CHECK, check_metadata(record, refusals), shown)

    return units
