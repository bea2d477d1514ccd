"""The checks of a gate over one batch: expectations, blank media, drift, and the dataset's own."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeGuard

import loader
from loader.errors import InvalidRuntime, VersionNotFound, VersionRetired
from penstock.stages import StageRecord

from ..checks import CheckResult, run_expectations
from ..drift import blank
from ..drift.compare import DRIFT_CHECKS, BatchFacts, GateInputs, batch_facts, version_baseline
from ..drift.contamination import BatchTexts
from ..gate_settings import DEFAULTS, EXPECTATIONS, SUITE, Gate
from ..pipeline.stages import record_reader

if TYPE_CHECKING:
    import polars as pl


class GateChecks:
    """The gate's checks of one batch.

    The first check that needs a shared value computes it, so that an error there fails a check and not the audit.
    """

    def __init__(
        self,
        root: loader.Root,
        samples: StageRecord,
        gate: Gate,
        table: "pl.DataFrame",
        newest: loader.Version | None,
    ) -> None:
        """Prepare the checks of a samples record, whose rows are `table`. newest: the dataset's newest version."""
        self._root = root
        self._samples = samples
        self._gate = gate
        self._table = table
        self._newest = newest
        # Samples that the dataset's own checks compare with.
        self._newest_samples: pl.LazyFrame | None = None
        if gate.checks and _has_samples(newest):
            self._newest_samples = newest.samples()
        self.compared: GateInputs | None = None
        """Inputs of the drift checks; None until one of them runs."""
        self.is_suite_broken = False
        """True once an expectation could not be evaluated."""

    def by_name(self) -> dict[str, Callable[[], CheckResult]]:
        """Return name -> check, in the order in which they run."""
        gate = self._gate
        checks: dict[str, Callable[[], CheckResult]] = {}
        checks[EXPECTATIONS] = self._suite
        if gate.blank is not None:
            checks[blank.NAME] = partial(self._blank, gate.blank)
        if gate.thresholds:
            for name, drift_check in DRIFT_CHECKS.items():
                checks[name] = partial(self._drift_check, drift_check)
        for name, own_check in gate.checks.items():
            checks[name] = partial(own_check, self._table, self._newest_samples)
        return checks

    def _suite(self) -> CheckResult:
        report = run_expectations(self._table, self._gate.suite)
        self.is_suite_broken = report.broken
        # No person may approve a sample that violates what every dataset needs.
        is_unsafe = any(item in report.not_passed for item in SUITE)
        approvable = not is_unsafe and not report.broken
        return replace(report.as_check(), approvable=approvable)

    def _blank(self, limit: float) -> CheckResult:
        return blank.blank_media(self._table, self._facts.media, limit)

    def _drift_check(self, check: Callable[[GateInputs], CheckResult]) -> CheckResult:
        if self.compared is None:
            self.compared = _gate_inputs(
                self._root,
                self._gate,
                self._facts,
                self._newest,
                self._documents,
            )
        return check(self.compared)

    @property
    def _documents(self) -> BatchTexts:
        samples = self._samples
        parts = [loader.Part.from_json(part) for part in samples.body["parts"]]
        return BatchTexts(
            reader=record_reader(self._root.store, samples),
            name=f"batch {samples.partition} of {samples.dataset}",
            parts=tuple(parts),
        )

    @cached_property
    def _facts(self) -> BatchFacts:
        # Decodes samples, so only a check that needs the facts computes them.
        return batch_facts(self._root.store, self._samples, self._table)


def _has_samples(version: loader.Version | None) -> TypeGuard[loader.Version]:
    """Return whether there is anything to compare with: a version may have no live sample."""
    return version is not None and len(version) > 0


def _open_protected(root: loader.Root, ref: str) -> loader.Version:
    try:
        return root.open(ref)
    except (VersionNotFound, VersionRetired) as error:
        # A batch stays stopped: without a comparison the evaluation is not protected.
        raise InvalidRuntime(f"{error}. Name a version that exists in Gate(protected=)") from error


def _gate_inputs(
    root: loader.Root,
    gate: Gate,
    now: BatchFacts,
    newest: loader.Version | None,
    documents: BatchTexts,
) -> GateInputs:
    """Return the inputs of the drift checks. now: facts of the batch. newest: the dataset's newest version."""
    against = newest
    if gate.baseline:
        against = root.open(gate.baseline)
    baseline = None
    if _has_samples(against):
        baseline = version_baseline(root, against)
    protected = [_open_protected(root, ref) for ref in gate.protected]
    return GateInputs(
        now=now,
        baseline=baseline,
        newest=newest,
        protected=tuple(protected),
        documents=documents,
        thresholds=gate.thresholds or DEFAULTS,
    )
