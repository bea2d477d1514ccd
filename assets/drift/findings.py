"""Thresholds of a dataset, measured differences, and the findings that stop a batch."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from assets import invalid_option
from loader.errors import InvalidSpec
from penstock.text import markdown_table

from ..checks.outcome import CheckResult

if TYPE_CHECKING:
    import polars as pl


CHECK_TEXTS = {
    "drift": "Compares columns, media, outcomes and counts of the batch with the batches of the baseline version.",
    "agreement": "Compares samples with their media, texts with their objects, and features with the newest batch.",
    "splits": "Compares the splits of raw objects and subjects with the newest version: none is in two splits.",
    "protected": "Compares the samples with the protected versions, which must stay unseen.",
}
"""Check of the drift gate (`compare`) -> description."""
CHECK_NAMES = tuple(CHECK_TEXTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Smallest differences that matter: shares of raw objects or samples, 0 to 1, unless stated otherwise.

    Raises: InvalidSpec out of range.
    """

    alpha: float = 1e-3
    """Probability that chance stops a batch, over all comparisons."""
    min_batches: int = 3
    """Fewest published batches; with fewer, statistical findings are warnings."""
    share: float = 0.1
    """Change in a category's share."""
    missing: float = 0.005
    """Change in the share of nulls and NaNs."""
    zeros: float = 0.005
    """Change in the share of exact zeros."""
    level: float = 0.2
    """Change of the mean, in standard deviations."""
    ks: float = 0.1
    """Kolmogorov-Smirnov distance."""
    psi: float = 0.2
    """Population stability index."""
    units_ratio: float = 0.95
    """Samples per used object, ratio to the baseline's, 0 to 1."""
    rejected: float = 0.02
    """Change in the share of rejected objects."""
    unused: float = 0.05
    """Change in the share of unused objects."""
    batch_ratio: float | None = None
    """Samples of a batch as a ratio to the median batch, 0 to 1; for deliveries of one size."""
    caption: float = 0.1
    """Drop in the share of captions that fit, or in the correlation of their lengths."""
    near_bits: int = 8
    """Bits of 64, 0 to 16, within which a perceptual hash matches a protected version's."""
    ignore: frozenset[str] = frozenset()
    """Columns to leave out."""
    within: tuple[str, ...] = ("source",)
    """Columns compared value by value."""

    def __post_init__(self) -> None:
        for name in (
            "alpha",
            "share",
            "missing",
            "zeros",
            "level",
            "ks",
            "psi",
            "rejected",
            "unused",
            "caption",
        ):
            if not 0 < getattr(self, name) <= 1:
                raise invalid_option(name, getattr(self, name), "above 0, at most 1")
        for name in ("units_ratio", "batch_ratio"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise invalid_option(name, value, "between 0 and 1, e.g. 0.95")
        if not 1 <= self.min_batches < math.inf or not 0 <= self.near_bits <= 16:
            raise InvalidSpec(
                f"min_batches={self.min_batches}, near_bits={self.near_bits}; accepted: 1 or more, and 0 to 16",
                what="min_batches and near_bits",
                given=(self.min_batches, self.near_bits),
                accepted=("1 or more", "0 to 16"),
            )

    def to_json(self) -> dict[str, Any]:
        """Return JSON without floats, for fingerprints."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: sorted(v) if isinstance(v, frozenset) else repr(v) for name, v in plain.items()}


T = TypeVar("T")
UNUSUAL = 1e-3
"""Probability outside the usual range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftFinding:
    """One relevant difference from the baseline."""

    what: str
    """Kind of the finding, such as "distribution"."""
    column: str
    """Name of the column."""
    of: str = ""
    """Samples concerned, such as "audio"; "" for all."""
    before: str = ""
    """Baseline's value, as text."""
    now: str = ""
    """Batch's value, as text."""
    effect: float = 0.0
    """Size of the difference."""
    limit: float = 0.0
    """Allowed size."""
    certain: bool = False
    """True if the finding needs no statistics."""
    keys: tuple[str, ...] = ()
    """A few samples or objects that show the difference."""

    @property
    def sentence(self) -> str:
        """The finding as a readable sentence."""
        where = ""
        if self.of:
            where = f" of {self.of}"
        return f"{self.what}: {self.column}{where}: {self.before or 'none'} before, {self.now or 'none'} now"

    def to_json(self) -> dict[str, Any]:
        """Return JSON without floats."""
        facts = {name: getattr(self, name) for name in ("what", "column", "of", "before", "now", "certain")}
        return facts | {"effect": repr(self.effect), "limit": repr(self.limit), "keys": list(self.keys)}


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectSize:
    """A measured difference, and the sizes that chance explains."""

    effect: float
    """Size of the difference."""
    chance: float
    """Root mean square of the size if both sides are draws of one distribution."""
    noise: float
    """Largest size by chance, at the significance level of this comparison."""


UNKNOWN = EffectSize(effect=0.0, chance=1.0, noise=1.0)
"""Nothing to compare: chance explains it."""


def is_notable(difference: EffectSize, limit: float, others: Callable[[], Sequence[EffectSize]]) -> bool:
    """Return whether a difference is relevant, significant and unusual.

    others: each baseline batch's difference from the rest, called only if the first two hold. Their spread beyond
    chance is s (DerSimonian and Laird 1986), if Cochran's Q is significant at 5 %. Unusual is beyond noise and t s
    sqrt(1 + 1/n) combined, with t Student's quantile for n batches.
    """
    if difference.effect <= max(limit, difference.noise):
        return False
    from scipy.stats import chi2, t

    spreads = list(others())
    if not spreads or sum((one.effect / (one.chance or 1e-12)) ** 2 for one in spreads) < chi2.isf(
        0.05, len(spreads)
    ):
        return True  # the batches differ from each other only by chance
    beyond = sum(other.effect**2 - other.chance**2 for other in spreads) / len(spreads)
    wide = float(t.isf(UNUSUAL / 2, len(spreads))) * math.sqrt(max(0.0, beyond) * (1 + 1 / len(spreads)))
    return difference.effect > math.hypot(difference.noise, wide)


def each_and_rest(batches: Sequence[T]) -> list[tuple[T, list[T]]]:
    """Return each batch with all others; [] if there are no others."""
    if len(batches) < 2:
        return []
    return [(one, [*batches[:place], *batches[place + 1 :]]) for place, one in enumerate(batches)]


def as_check(
    name: str,
    findings: Sequence[DriftFinding],
    compared: str,
    *,
    usual_known: bool = True,
    approvable: bool = True,
) -> CheckResult:
    """Return findings as one check result.

    compared: both sides, in words. usual_known: if False, only certain findings stop a batch.
    """
    ordered = sorted(findings, key=lambda each: (not each.certain, -each.effect / (each.limit or 1e-9)))
    stopping = [one for one in ordered if one.certain or usual_known]
    sentences = "; ".join(one.sentence for one in ordered[:3])
    more = ""
    if len(ordered) > 3:
        more = f"; and {len(ordered) - 3} more"
    doubt = " (too few batches to tell what is usual)"
    if usual_known or not ordered:
        doubt = ""
    rows = [
        (one.what, one.column, one.of, one.before, one.now, f"{one.effect:.4g}", f"{one.limit:.4g}")
        for one in ordered
    ]
    header = ("finding", "column", "of", "before", "now", "difference", "allowed")
    return CheckResult(
        name=name,
        passed=not ordered,
        severity="error" if stopping or not ordered else "warn",
        value=float(len(ordered)),
        limit=0.0,
        explanation=f"{compared}: {sentences + more + doubt if ordered else 'nothing stands out'}",
        table_markdown=markdown_table(header, rows) if rows else "",
        approvable=approvable,
        findings=tuple(one.to_json() for one in ordered[:50]),
    )


_SQUARE = 1.05
"""Largest ratio of a square image's sides."""
_IDENTITY = ("version", "weights_sha256", "device", "dtype", "torch", "processor")
"""Facts that identify a computation."""


def turned_findings(samples: "pl.DataFrame", media: "pl.DataFrame") -> list[DriftFinding]:
    """Find images turned against their object: a rotation was ignored, or applied twice."""
    import polars as pl

    sizes = ["width_px", "height_px"]
    upright = ["upright_width_px", "upright_height_px"]
    if not {*sizes, "raw_key"} <= set(samples.columns) or not {*upright, "key"} <= set(media.columns):
        return []
    if not all(samples[name].dtype.is_numeric() for name in sizes):
        return []  # `schema_findings` reports the changed type
    both = samples.select("key", "raw_key", *sizes).join(
        media.select(pl.col("key").alias("raw_key"), *upright), on="raw_key"
    )
    sample_ratio = pl.col("width_px") / pl.col("height_px")
    object_ratio = pl.col("upright_width_px") / pl.col("upright_height_px")
    clear = both.filter(
        (object_ratio > _SQUARE) | (object_ratio < 1 / _SQUARE),
        (sample_ratio > _SQUARE) | (sample_ratio < 1 / _SQUARE),
    )
    turned = clear.filter((sample_ratio > 1) != (object_ratio > 1))
    if not len(turned):
        return []
    return [
        DriftFinding(
            what="turned",
            column="width_px, height_px",
            before="as its object",
            now=f"{len(turned)} of {len(clear)} samples turned by 90 degrees",
            effect=len(turned) / len(clear),
            certain=True,
            keys=tuple(turned["key"].head(5)),
        )
    ]


def featurizer_findings(
    now: Mapping[str, Mapping[str, Any]],
    before: Mapping[str, Mapping[str, Any]],
    again: Mapping[str, Mapping[str, Any]],
) -> list[DriftFinding]:
    """Find featurizers that computed the batch differently than the newest published batch.

    Arguments: featurizer -> facts of its record (version, weights_sha256, torch ...); again: of the published batch's
    newest recomputation. A raised code number announces a change, which a recomputation settles. Changes under the
    same number are silent.
    """
    findings = []
    for name in sorted(set(now) & set(before)):
        current = now[name]
        published = before[name]
        changed = _changed_columns(current, published)
        if not changed or not _changed_columns(current, again.get(name, published)):
            continue
        announced = _code(current) != _code(published)
        before_words, now_words = (
            ", ".join(f"{one} {facts.get(one, 'unknown')}" for one in changed)[:200]
            for facts in (published, current)
        )
        what = "featurizer silently changed"
        if announced:
            what = "featurizer changed"
        findings.append(
            DriftFinding(
                what=what,
                column=name,
                before=before_words,
                now=now_words,
                certain=not announced,
            )
        )
    return findings


def _changed_columns(current: Mapping[str, Any], published: Mapping[str, Any]) -> list[str]:
    return [
        one for one in _IDENTITY if one in current and one in published and current[one] != published[one]
    ]


def _code(facts: Mapping[str, Any]) -> str:
    return str(facts.get("version", "")).partition("-")[0]


def schema_findings(now: Mapping[str, str], before: Mapping[str, str]) -> list[DriftFinding]:
    """Find columns whose type changed. now, before: column -> Arrow type, "null" for a column without values."""
    findings = []
    for name in sorted(set(now) & set(before)):
        current = now[name]
        published = before[name]
        if (
            "null" in (current, published)
            or current == published
            or {current, published} == {"int64", "double"}
        ):
            continue
        words: Any = {"before": published, "now": current}
        findings.append(
            DriftFinding(
                what="another type",
                column=name,
                **words,
                certain=True,
            )
        )
    return findings


def non_finite_findings(
    samples: "pl.DataFrame", earlier: Sequence["pl.DataFrame"], known: Collection[str]
) -> list[DriftFinding]:
    """Find infinities in columns of floating-point numbers whose earlier batches have none.

    samples: of the batch. known: columns of the version; others are new, and nothing is usual in them.
    """
    findings = []
    for name in samples.columns:
        n_infinite = _count_infinite(samples, name)
        if not n_infinite or name not in known:
            continue
        if any(_count_infinite(batch, name) for batch in earlier):
            continue
        finding = DriftFinding(
            what="infinite",
            column=name,
            before="finite numbers",
            now=f"{n_infinite} infinite",
            certain=True,
        )
        findings.append(finding)
    return findings


def _count_infinite(samples: "pl.DataFrame", name: str) -> int:
    """Return the number of infinities in a column; 0 if it is missing or has no floating-point numbers."""
    if name not in samples.columns or not samples[name].dtype.is_float():
        return 0
    return int(samples[name].is_infinite().sum() or 0)
