"""Checks that a batch must pass before its publication: expectations, drift, and a dataset's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from assets import invalid_option
from loader.errors import InvalidSpec
from penstock.stages import fingerprint

from .checks import CheckResult, Expectation
from .drift import Thresholds, blank
from .drift.findings import CHECK_NAMES, CHECK_TEXTS

if TYPE_CHECKING:
    import polars as pl

CODE_VERSION = "3"
"""Version of `assets.release.gate_run`, `gate_checks` and this module."""
_TEXTS_COMPARED = "texts"
"""Part of the fingerprint of gates with protected versions, whose texts earlier releases did not compare."""
EXPECTATIONS = "expectations"
DEFAULTS = Thresholds()

TableCheck = Callable[["pl.DataFrame", "pl.LazyFrame | None"], CheckResult]
"""(samples table that a batch would add, newest version's or None) -> result."""

SUITE = (
    Expectation(kind="row_count", low=1),
    Expectation(kind="column", column="key", type="String"),
    Expectation(kind="not_null", column="key"),
    Expectation(kind="unique", column="key"),
    Expectation(kind="matches", column="raw_sha256", pattern="^[0-9a-f]{64}$"),
    Expectation(kind="not_null", column="raw_sha256"),
    Expectation(kind="not_null", column="raw_uri"),
    Expectation(kind="not_null", column="run_id"),
    Expectation(kind="not_null", column="licence"),
    Expectation(
        kind="in_set",
        column="kind",
        values=("image", "video", "audio", "text", "other"),
    ),
    Expectation(kind="not_null", column="kind"),
)
"""Expectations for every dataset: unique keys, provenance down to raw object, licence and run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Checks that a batch must pass to be published.

    Raises: InvalidSpec for a built-in name of a check, a share out of range, and for `baseline` or `protected` without
    `thresholds`.
    """

    suite: tuple[Expectation, ...] = SUITE
    """Expectations on the rows."""
    checks: Mapping[str, TableCheck] = field(default_factory=dict)
    """Name in Dagster -> own check."""
    blank: float | None = 0.5
    """Share of black, single-coloured or silent objects of a kind or source from which a batch stops; None: any."""
    thresholds: Thresholds | None = DEFAULTS
    """Allowed differences (`assets.drift`); None compares nothing."""
    baseline: str = ""
    """Ref to compare with; "": the newest."""
    protected: tuple[str, ...] = ()
    """Refs of versions whose samples must not appear."""
    version: str = "1"
    """Version of the code in `checks`."""

    def __post_init__(self) -> None:
        if reserved := {EXPECTATIONS, blank.NAME, *CHECK_NAMES} & set(self.checks):
            raise InvalidSpec(
                f"a check cannot be called {min(reserved)!r}: the gate has a check of this name",
                what="checks",
                given=min(reserved),
            )
        if self.blank is not None and not 0 < self.blank <= 1:
            raise invalid_option("blank", self.blank, "above 0, at most 1, or None")
        if self.thresholds is None and (self.baseline or self.protected):
            raise InvalidSpec(
                "baseline and protected need thresholds: pass thresholds=Thresholds()",
                what="thresholds",
                given=(self.baseline, self.protected),
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all checks, with the suite first."""
        names = [EXPECTATIONS]
        if self.blank is not None:
            names.append(blank.NAME)
        if self.thresholds:
            names += CHECK_NAMES
        return (*names, *self.checks)

    def text_of(self, name: str) -> str:
        """Return a one-sentence description of the check."""
        if name == EXPECTATIONS:
            rules = ", ".join(f"{one.kind} {one.column}".strip() for one in self.suite) or "none"
            return f"Compares each sample's row with the dataset's expectations: {rules}."
        if name == "protected" and self.protected:
            return f"Compares the samples with {', '.join(self.protected)}, which must stay unseen."
        if name == blank.NAME:
            return blank.TEXT
        if name in CHECK_TEXTS:
            return CHECK_TEXTS[name]
        doc = (getattr(self.checks[name], "__doc__", None) or "").strip().partition("\n\n")[0]
        return " ".join(doc.split()) or f"The dataset's own check {name}, which has no docstring."

    def fingerprint(self) -> str:
        """Return a hash of the gate's rules. A stored verdict does not hold for a gate with another one."""
        if self.thresholds:
            thresholds = self.thresholds.to_json()
        else:
            thresholds = {}
        suite = [item.to_json() for item in self.suite]
        protected = list(self.protected)
        if protected:
            # Earlier releases compared no texts with them. Without protected versions the hash stays what it was.
            protected.append(_TEXTS_COMPARED)
        return fingerprint(
            CODE_VERSION,
            self.version,
            repr(self.blank),
            list(self.checks),
            suite,
            thresholds,
            self.baseline,
            protected,
        )


GATE = Gate()
