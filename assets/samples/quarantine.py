"""The asset `quarantine`: re-reads samples that training runs reported, and publishes a version without corrupt ones.

stages/<dataset>/quarantine/ledgers/<r>.json    tables/<dataset>/quarantine/ledgers/<hex>.parquet
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import dagster as dg

import loader
from loader.dataset.log.entries import DAMAGED
from loader.dataset.versions.samples_table import live_rows
from loader.errors import Conflict, SampleNotFound, VersionNotFound
from loader.json_text import parse_json_object
from loader.storage import Store
from penstock.compute.pool import Compute
from penstock.stages import StageRecord, current_record, find_record, fingerprint, record_path
from resources.compute import ComputeResource
from resources.storage import RootResource
from resources.viewer_links import sample_page, version_page

from ..pages.report import (
    Metadata,
    code_block,
    link,
    table_metadata,
    viewer_metadata,
)
from ..pipeline.stages import QUARANTINE, VERSION, PipelineStage
from ..pipeline.tables import read_table
from ..spec import DatasetSpec
from .reported_samples import Judgement, judge

PARTITION = "ledgers"
CODE_VERSION = "1"
CHECK = "within_limits"
MAX_LEDGERS = 1000
"""Most ledgers per run."""
ALLOWANCE = 8
"""Samples that a run may exclude on top of the allowed share."""
_TRIES = 5
# Any training may write a ledger. One of this size reports far more than a run may exclude.
_LEDGER_BYTES = 64 * 2**20
_KEY_BYTES = 1024  # longer than any member's name

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """Result of a quarantine run."""

    record: StageRecord | None
    """Record of all verdicts; None without ledgers."""
    rows: tuple[Row, ...] = ()
    """A row per line of the ledgers that this run judged."""
    excluded: tuple[str, ...] = ()
    """Keys of excluded samples."""
    version: loader.Version | None = None
    """None if no sample, or too many, are corrupt."""
    judged: loader.Version | None = None
    """Judged version; None before the first."""


def unjudged_ledgers(store: Store, dataset: str) -> Iterator[str]:
    """Yield the keys of ledgers that the dataset has not judged, sorted.

    Lists `ledgers/`. Raises: Corrupt; StoreError.
    """
    seen = {row["ledger"] for row in verdicts(store, dataset)}
    return (
        info.key for info in store.list("ledgers/") if info.key.endswith(".jsonl") and info.key not in seen
    )


def verdicts(store: Store, dataset: str) -> list[Row]:
    """Return every line of every judged ledger, with its verdict. Raises: Corrupt; StoreError."""
    return _rows(store, current_record(store, dataset, QUARANTINE, PARTITION))


def quarantined_units(store: Store, dataset: str) -> dict[str, str]:
    """Return unit_id -> reason, for units whose bytes do not decode; a recut heals a wrong checksum."""
    return {
        row["unit_id"]: f"quarantined: {row['code']}: {row['reason']}"
        for row in verdicts(store, dataset)
        if row["unit_id"] and row["verdict"] == "corrupt" and row["code"] != "checksum"
    }


def quarantine_stage(
    root: loader.Root,
    compute: Compute,
    spec: DatasetSpec,
    *,
    run_id: str,
) -> Quarantined:
    """Judge new ledgers, write the verdicts, and publish a version without the corrupt samples.

    Beyond `max_quarantine_rate` the verdict is `failed` and nothing is published. Raises: StoreError if a sample could
    not be read; Corrupt.
    """
    store = root.store
    newest = root.state.newest(spec.name)
    if newest is None:
        return Quarantined(record=None)
    version = root.open(newest.id)
    lines = [
        row
        for path in islice(unjudged_ledgers(store, spec.name), MAX_LEDGERS)
        for row in _ledger_lines(root, spec, path)
    ]
    # The others have a verdict without a read: unreadable, or another dataset's.
    to_judge = [row for row in lines if not row["verdict"]]
    # Many steps and ranks report one sample, which is read once with all their fields.
    claims: dict[str, set[str]] = {}
    for row in to_judge:
        claims.setdefault(row["key"], set()).update(row["fields"])
    judgements = judge(
        version,
        {key: sorted(fields) for key, fields in claims.items()},
        compute,
        timeout_s=spec.work_timeout_s,
    )
    units = _unit_ids(
        version, [key for key, judgement in judgements.items() if judgement.verdict == "corrupt"]
    )
    rows = tuple(_judge_row(row, judgements.get(row["key"]), version, units, run_id) for row in lines)
    record = _store_verdicts(root, spec, rows, version, run_id)
    if record is None:
        return Quarantined(record=None)
    if record.verdict != "published":
        return Quarantined(record=record, rows=rows, judged=version)
    excluded, version_without = _publish_exclusions(root, spec, record, run_id)
    return Quarantined(record=record, rows=rows, excluded=excluded, version=version_without, judged=version)


def _rows(store: Store, record: StageRecord | None) -> list[Row]:
    """Return the verdicts of a record; none before the first."""
    if record is not None:
        return read_table(store, record.files[QUARANTINE])
    return []


def _ledger_lines(root: loader.Root, spec: DatasetSpec, path: str) -> list[Row]:
    """Return a row per line of a ledger; its verdict is "" if the sample is to be judged."""
    rows: list[Row] = []
    info = root.store.head(path)
    if info.nbytes > _LEDGER_BYTES:
        reason = f"{info.nbytes} bytes; accepted are {_LEDGER_BYTES}"
        return [{"ledger": path, "line": 0, "key": "", "verdict": "unreadable", "reason": reason}]
    # An empty ledger gets a line too; without a verdict, each run would read it again.
    for number, line in enumerate(bytes(root.store.get(path).data).splitlines() or [b""]):
        row: Row = {"ledger": path, "line": number, "key": "", "verdict": ""}
        try:
            row |= _ledger_row(parse_json_object(line))
            dataset, _ = root.state.ids.get(row["version_id"], ("", 0))
            # A ledger has the samples of all sources of a plan. Another dataset's quarantine judges its own.
            row["verdict"] = "" if dataset == spec.name else "elsewhere"
        except DAMAGED as error:
            row |= {"verdict": "unreadable", "reason": f"{type(error).__name__}: {error}"[:500]}
        rows.append(row)
    return rows


def _ledger_row(body: Mapping[str, Any]) -> Row:
    row = {name: body[name] for name in ("version_id", "key", "source", "error")}
    if not all(isinstance(value, str) for value in row.values()):
        raise TypeError(f"{', '.join(row)} are text, got {list(map(type, row.values()))}")
    step = body["step"]
    fields = sorted(body["fields"])
    # `type`, since True is an int. 64 bits: the table's column.
    if type(step) is not int or not 0 <= step < 2**63:
        raise ValueError(f"step={step!r:.40}; accepted are integers from 0, of 64 bits")
    if len(row["key"].encode()) > _KEY_BYTES or not all(isinstance(name, str) for name in fields):
        raise ValueError(f"a key of more than {_KEY_BYTES} bytes, or fields whose names are not text")
    return row | {"error": row["error"][:500], "step": step, "fields": fields}


def _judge_row(
    row: Row, judgement: Judgement | None, version: loader.Version, units: Mapping[str, str], run_id: str
) -> Row:
    stamped = row | {"run_id": run_id, "at_us": time.time_ns() // 1000}
    if row["verdict"] == "unreadable":
        return stamped
    if row["verdict"] or judgement is None:
        # Do not record details of another dataset's samples.
        return stamped | {"key": "", "error": ""}
    return stamped | {
        "verdict": judgement.verdict,
        "code": judgement.code,
        "reason": judgement.reason,
        "version": version.name,
        "part": judgement.part,
        "row": judgement.row,
        "unit_id": units.get(row["key"], ""),
    }


def _unit_ids(version: loader.Version, keys: Sequence[str]) -> dict[str, str]:
    """Return key -> unit_id, "" for none; {} for a version that was not cut from raw objects."""
    if not keys or "unit_id" not in version.manifest["columns"]:
        return {}
    import polars as pl

    table = version.samples().filter(pl.col("key").is_in(list(keys))).select("key", "unit_id").collect()
    return {key: unit or "" for key, unit in table.iter_rows()}


def _store_verdicts(
    root: loader.Root, spec: DatasetSpec, rows: Sequence[Row], version: loader.Version, run_id: str
) -> StageRecord | None:
    """Add rows to the dataset's verdicts, and return their record; None if there are none."""
    stage = PipelineStage(
        root.store, spec.name, QUARANTINE, PARTITION, run_id=run_id, code_version=CODE_VERSION
    )
    pending = list(rows)
    while True:
        before = stage.current()
        known = _rows(root.store, before)
        seen = {row["ledger"] for row in known}
        fresh = [row for row in pending if row["ledger"] not in seen]
        whole = [*known, *fresh]
        if not whole:
            return None
        n_corrupt = len(_live_corrupt_keys(version, whole))
        # A small dataset could otherwise lose no sample at all: 0.1 % of 500 rounds to 0.
        allowed = int(spec.max_quarantine_rate * len(version)) + ALLOWANCE
        reason = ""
        verdict = "published"
        if n_corrupt > allowed:
            reason = _too_many(spec, n_corrupt, len(version), allowed)
            verdict = "failed"
        # Unless the version or the rate changed, a run without new rows changes nothing.
        if before is not None and not fresh and (before.verdict, before.reason) == (verdict, reason):
            return before
        counts: dict[str, int] = {}
        for row in whole:
            counts[row["verdict"]] = counts.get(row["verdict"], 0) + 1
        ledgers = sorted({row["ledger"] for row in whole})
        record = stage.append(
            fingerprint=fingerprint(CODE_VERSION, ledgers),
            reason=reason,
            files={QUARANTINE: stage.write_table(QUARANTINE, [_columns(row) for row in whole])},
            counts=counts,
        )
        next_r = before.r + 1 if before else 1
        if record.r == next_r:
            return record
        # Other runs appended between. This record hides theirs, so it is appended again with their rows.
        for number in range(next_r, record.r):
            other = find_record(root.store, record_path(spec.name, QUARANTINE, PARTITION, number))
            judged = {row["ledger"] for row in pending}
            pending += [row for row in _rows(root.store, other) if row["ledger"] not in judged]


def _too_many(spec: DatasetSpec, n_corrupt: int, n_samples: int, allowed: int) -> str:
    return (
        f"{n_corrupt} of {n_samples} samples of {spec.name} are corrupt, reports may take out {allowed} at once: a "
        "store, or a step that writes, is broken rather than samples. Restore the shards from a mirror, or raise "
        "max_quarantine_rate in the dataset's spec, and run this again"
    )


def _columns(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("fields", "version_id")}


def _live_corrupt_keys(version: loader.Version, rows: Iterable[Row]) -> list[str]:
    """Return the keys of corrupt samples that are still live where they were judged, sorted."""
    corrupt = {(row["part"], row["row"]): row["key"] for row in rows if row["verdict"] == "corrupt"}
    if corrupt:
        live = live_rows(version, frozenset(corrupt.values()))
    else:
        live = {}
    # A recut sample keeps its key and gets another row; its new bytes were not judged.
    return sorted(key for (part, row), key in corrupt.items() if live.get(part, {}).get(row) == key)


def _publish_exclusions(
    root: loader.Root, spec: DatasetSpec, record: StageRecord, run_id: str
) -> tuple[tuple[str, ...], loader.Version | None]:
    """Return (excluded keys, the version without them); ((), None) if no corrupt sample is live."""
    rows = _rows(root.store, record)
    producer = {
        "dagster_run_id": run_id,
        "asset_key": f"{spec.name}/{QUARANTINE}",
        "stage_record": record.path,
    }
    reason = f"corrupt: met in training, and again when it was read for {record.path}"
    for attempt in range(_TRIES):
        newest = root.state.newest(spec.name)
        if newest:
            keys = _live_corrupt_keys(root.open(newest.id), rows)
        else:
            keys = []
        if newest is None or not keys:
            return (), None
        try:
            return tuple(keys), root.exclude(newest.id, keys, reason=reason, producer=producer)
        # The newest version changed meanwhile. Its live samples are looked up anew.
        except (Conflict, SampleNotFound, VersionNotFound):
            if attempt == _TRIES - 1:
                raise
    return (), None


_CHECK_SAYS = (
    "Few enough samples that trainings reported are corrupt to leave them out. If there are more, no version "
    "without them is published."
)
QuarantineEvent = dg.AssetCheckResult | dg.MaterializeResult[None]


def quarantine_asset(spec: DatasetSpec) -> dg.AssetsDefinition:
    key = dg.AssetKey([spec.name, QUARANTINE])

    @dg.asset(
        key=key,
        deps=[dg.AssetKey([spec.name, VERSION])],
        code_version=CODE_VERSION,
        kinds={"parquet"},
        check_specs=[dg.AssetCheckSpec(CHECK, asset=key, blocking=True, description=_CHECK_SAYS)],
        description="Samples that trainings reported as corrupt, judged again and left out if they are.",
    )
    def quarantine(
        context: dg.AssetExecutionContext, root: RootResource, compute: ComputeResource
    ) -> Iterator[QuarantineEvent]:
        with root.opened() as opened, compute.opened(context) as engine:
            quarantined = quarantine_stage(opened, engine, spec, run_id=context.run.run_id)
            shown = quarantine_metadata(opened.url, quarantined)
            reason = ""
            if quarantined.record:
                reason = quarantined.record.reason
            yield dg.AssetCheckResult(check_name=CHECK, passed=not reason, metadata=shown)
            if reason:
                # The check only displays the verdict: the record is already written.
                raise dg.Failure(reason, metadata=shown, allow_retries=False)
        yield dg.MaterializeResult(metadata=shown)

    return quarantine


def quarantine_metadata(url: str, quarantined: Quarantined) -> Metadata:
    """Return the verdicts and their ledgers as metadata. url: the root's URL."""
    if quarantined.record is None:
        return {"ledgers": dg.MetadataValue.int(0)}
    # Another dataset's quarantine shows its own samples.
    judged = [row for row in quarantined.rows if row["verdict"] != "elsewhere"]
    table = [
        (
            row["verdict"],
            _sample_link(quarantined.judged, row),
            row.get("code") or "",
            row.get("reason") or "",
            row["ledger"],
        )
        for row in judged
    ]
    # ledgers/<plan>/...; a few commands are enough to begin with.
    plans = sorted({str(row["ledger"]).split("/")[1] for row in judged})[:5]
    commands = [f"penstock explain {plan} --step STEP --root {url}" for plan in plans]
    return (
        {name: dg.MetadataValue.int(n) for name, n in quarantined.record.counts.items()}
        | {
            "excluded": dg.MetadataValue.int(len(quarantined.excluded)),
            "version": dg.MetadataValue.text(
                quarantined.version.name if quarantined.version else "none: nothing to leave out"
            ),
            "judged_now": table_metadata(("verdict", "sample", "code", "why", "ledger"), table),
            "explain": dg.MetadataValue.md(code_block("sh", *commands) if commands else "none"),
            "stage_record": dg.MetadataValue.text(quarantined.record.path),
        }
        | viewer_metadata(
            version_page(quarantined.version.dataset, quarantined.version.number)
            if quarantined.version
            else ""
        )
    )


def _sample_link(version: loader.Version | None, row: Mapping[str, Any]) -> str:
    """Return a link to a sample's page, or its key if the judged version does not have the sample."""
    if version is None or row.get("row", -1) < 0:
        return str(row["key"])
    position = version.parts.position(row["part"])
    n_live_before = int(version.parts.live_members(position)[: row["row"]].sum())  # in the part
    ordinal = int(version.parts.first_ordinal[position]) + n_live_before
    return link(row["key"], sample_page(version.dataset, version.number, ordinal))
