"""Cut a batch's raw objects in workers, and collect the units as parts of a transaction."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from loader.dataset.shards.part import Part
from penstock.compute.job import Job, store_url
from penstock.compute.local_blocks import job_blocks
from penstock.compute.pool import Outcome
from penstock.stages import fingerprint

from ..media.cut_audit.findings import STAGE as CUT_AUDIT
from ..media.cutters import ALL_KINDS, CUTTERS
from ..media.objects import refusal_row
from ..media.policy import CutPolicy
from ..media.unit import Kind, dropped, rejected
from ..pipeline.stages import BatchSamples, OpenBatch, parse_written_part
from .audit_work import StagedClips
from .cut_work import CUT, CutTask, CutUnits
from .refusals import DUPLICATE
from .time_limits import Tell, TimeLimit, log, media_row_limits

Row = dict[str, Any]


def new_objects(
    audits: Sequence[Row],
    published: Mapping[str, str],
) -> tuple[list[Row], list[Row]]:
    """Return (media rows of objects to cut, refusal rows of duplicates).

    published: SHA-256 -> where the dataset has these bytes.
    """
    fresh = list[Row]()
    refusals = list[Row]()
    for row in audits:
        sha256 = row["sha256"]
        published_as = published.get(sha256)
        if published_as is None:
            fresh.append(row)
        else:
            duplicate = dropped("dedup", DUPLICATE, f"the same bytes as {published_as}")
            refusals.append(refusal_row(row["key"], sha256, duplicate))
    return fresh, refusals


def all_class_names(
    audits: Sequence[Row],
    raws: Mapping[str, Row],
    known: Sequence[str],
) -> list[str]:
    """Return the class names: `known` first, so that numbers keep their meaning, then new ones, sorted."""
    new_names = set[str]()
    for row in audits:
        cutter = CUTTERS[row["kind"]]
        if cutter.has_label:
            new_names.add(raws[row["key"]]["label"])
    new_names.difference_update(known)
    return [*known, *sorted(new_names)]


def cut_objects(
    batch: OpenBatch,
    audits: Sequence[Row],
    labels: Sequence[str],
    tell: Tell = log.info,
) -> BatchSamples:
    """Cut objects of a batch, given by their media rows, and write their units as parts.

    labels: class names, by class number. tell: receives each object whose time limit exceeds the dataset's.
    """
    spec = batch.spec
    limits = media_row_limits(audits, spec, tell)
    tasks = _tasks(batch, audits, labels, limits)
    job = _job(batch, audits, labels)
    parts = list[tuple[str, Part]]()
    rows = list[Row]()
    refusals = list[Row]()
    short_shots = 0
    # An object's failure or refusal is in its outcome; units, and refusals for foreign files, are in the block's part.
    for block in job_blocks(batch.compute, job, lambda: tasks):
        for number, outcome in enumerate(block.outcomes, block.first):
            refusal = _refusal(audits[number], limits[number], outcome)
            if refusal is not None:
                refusals.append(refusal)
        cut = block.part
        for kind, body in cut.parts:
            part = parse_written_part(body, batch.txn)  # checks its paths, because a node stated them
            parts.append((kind, part))
        rows += cut.rows
        refusals += cut.refusals
        short_shots += cut.short_shots
    return BatchSamples(
        parts=parts,
        rows=rows,
        refusals=refusals,
        labels=labels,
        jobs=[job],
        short_shots=short_shots,
    )


def _job(
    batch: OpenBatch,
    audits: Sequence[Row],
    labels: Sequence[str],
) -> Job[CutTask, CutUnits]:
    store = batch.root.store
    hashes = [row["sha256"] for row in audits]
    return Job(
        store=store,
        work=CUT,
        about=f"{batch.spec.name}/units/{batch.partition}",
        # The transaction's name covers policy and code; labels and objects also depend on the newest version.
        fingerprint=fingerprint(batch.txn, list(labels), hashes),
        stores=[batch.landing, store],
    )


def _refusal(row: Row, limit: TimeLimit, outcome: Outcome[CutUnits]) -> Row | None:
    """Return the refusal of an object that was not cut; None if it has units. row: its row of `media`."""
    if outcome.error is not None:
        reason = limit.reason(outcome.error)
        refusal = rejected("cut", outcome.error.code, reason)
        return refusal_row(row["key"], row["sha256"], refusal)
    if outcome.value is None:
        return None
    return outcome.value.refusal


def _tasks(
    batch: OpenBatch,
    audits: Sequence[Row],
    labels: Sequence[str],
    limits: Sequence[TimeLimit],
) -> list[CutTask]:
    """Return the task of each object. limits: time limit of each."""
    spec = batch.spec
    store = batch.root.store
    has_folder_labels = spec.label_from == "folder"
    staged_clips = StagedClips(spec.name, batch.partition, spec.policy)
    tasks = list[CutTask]()
    for row, limit in zip(audits, limits, strict=True):
        raw = batch.raws[row["key"]]
        kind: Kind = row["kind"]
        label = None
        if has_folder_labels and CUTTERS[kind].has_label:
            label = labels.index(raw["label"])
        task = CutTask(
            landing=store_url(batch.landing),
            root=store_url(store),
            txn=batch.txn,
            raw=raw,
            audit=row,
            policy=spec.policy,
            settings=_setting_texts(spec.policy, kind),
            staging=staged_clips.key(raw),
            label=label,
            has_folder_labels=has_folder_labels,
            source=_provenance(batch, raw),
            limit_s=limit.seconds,
        )
        tasks.append(task)
    return tasks


def _provenance(batch: OpenBatch, raw: Row) -> dict[str, str]:
    """Return the provenance of all samples of an object."""
    spec = batch.spec
    by_subject = spec.split_by == "subject"
    subject = str(raw["label"])  # the object's folder names the subject
    # All samples of a subject, or of an object, are in one split.
    if by_subject:
        identity = subject
    else:
        identity = str(raw["sha256"])
    provenance = {
        "source_key": raw["key"],
        "raw_uri": raw["uri"],
        "raw_key": raw["key"],
        "raw_etag": raw["etag"],
        "raw_sha256": raw["sha256"],
        "split": spec.split_of(identity),
        **batch.provenance,
    }
    if by_subject and subject:
        provenance["subject"] = subject
    return provenance


def untrue_reason(
    refusals: Sequence[Row],
    n_objects: int,
    max_untrue_rate: float,
) -> str:
    """Return why these refusals stop a batch, or "".

    An object that differs from its source after the cut is left out. Many such objects point to a bug in penstock or a
    library.
    """
    untrue = [row for row in refusals if row["stage"] == CUT_AUDIT]
    if len(untrue) <= max_untrue_rate * n_objects:
        return ""
    counts = Counter(row["code"] for row in untrue)
    codes = ", ".join(f"{code} ({n})" for code, n in sorted(counts.items()))
    first = untrue[0]
    return (
        f"{len(untrue)} of {n_objects} objects differ from their source after the cut; the limit is "
        f"{max_untrue_rate:.1%} (max_untrue_rate): {codes}. First: {first['key']!r}: {first['reason']}"
    )


def policy_fingerprint(policy: CutPolicy) -> str:
    """Return the policy's SHA-256 in hex."""
    return fingerprint([_setting_texts(policy, kind) for kind in ALL_KINDS])


def _setting_texts(policy: CutPolicy, kind: Kind) -> dict[str, str]:
    """Return the settings that decide a kind's units, as texts for fingerprints."""
    texts: dict[str, str] = {}
    for name, value in policy.of(kind).items():
        texts[name] = str(value)  # fingerprints take no floats
    return texts
