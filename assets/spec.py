"""A dataset's spec: all decisions of its owner in one value.

A file in the folder `PENSTOCK_DATASETS` defines `SPEC = DatasetSpec(...)`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from numbers import Real
from typing import Any, Literal, get_args

from assets import invalid_option
from loader.dataset.hash_splits import split_of
from loader.dataset.names import check_dataset_name
from loader.errors import InvalidSpec

from .dedup.policy import NearDuplicates
from .featurizers import Featurizer, make
from .featurizers.featurizer import check_distinct_names
from .gate_settings import GATE, Gate
from .media.policy import CutPolicy
from .search_settings import Search, check_searchable
from .sources import DEFAULT_LIMITS, KEYED_BY_PLACE, LANDING, BatchLimits, Source, check_sources

_OWNER = re.compile(r"[^@\s:]+@[^@\s:]+\.[^@\s:]+|team:[A-Za-z0-9_.-]+")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """Scheduled work, owners and tenant, and the accepted age of versions. Raises: InvalidSpec."""

    tenant: str = ""
    """Tenant for the run queue's limits; "" for none."""
    owners: tuple[str, ...] = ()
    """Owners in Dagster's catalog: "name@lab.example" or "team:vision"."""
    timezone: str = "UTC"
    """Time zone of the crons, an IANA name."""
    release: str = "0 3 * * *"
    """Cron of the release; "" for none."""
    refresh: str = "0 1 * * *"
    """Cron of the refresh; "" for none."""
    reconcile: str = "0 5 * * 6"
    """Cron of the reconcile job; "" for none."""
    refresh_partitions: int = 64
    """Most batches that one refresh tick requests."""
    fresh_within: timedelta | None = None
    """Accepted age of the newest version, or None."""
    warn_within: timedelta | None = None
    """Age at which Dagster warns, below `fresh_within`, or None."""

    def __post_init__(self) -> None:
        if self.tenant and not _TENANT.fullmatch(self.tenant):
            raise invalid_option("tenant", self.tenant, "letters, digits, '.', '_' and '-', at most 63")
        wrong = [one for one in self.owners if not _OWNER.fullmatch(one)]
        if wrong:
            raise invalid_option("owners", self.owners, "a tuple of e-mail addresses and of 'team:<name>'")
        if not 1 <= self.refresh_partitions < math.inf:
            raise invalid_option("refresh_partitions", self.refresh_partitions, "1 or more")
        if self.warn_within and not (self.fresh_within and self.warn_within < self.fresh_within):
            raise InvalidSpec(
                f"warn_within={self.warn_within}; accepted: less than fresh_within, which it needs",
                what="warn_within",
                given=self.warn_within,
                accepted="less than fresh_within",
            )


UPKEEP = Upkeep()


_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Delays in seconds after which a person is alerted; None never alerts. Raises: InvalidSpec."""

    backlog_s: float | None = 6 * _HOUR_S
    """Longest seconds from landing until an object is trainable or its batch is stopped. Six hours exceed any healthy
    run: 8 hours of media take one hour at the slowest measured rate.
    """
    silence_s: float | None = None
    """Longest seconds without arrivals."""
    version_s: float | None = None
    """Largest age of the newest version."""

    def __post_init__(self) -> None:
        for name in ("backlog_s", "silence_s", "version_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:  # a delay never exceeds NaN
                raise invalid_option(name, value, "seconds above 0, or None")


LIMITS = Limits()


MAX_STREAMING_WAIT_S = 60.0
"""Largest `max_wait_s` of a streaming dataset."""


def stage_name(featurizer: str) -> str:
    """Return the name of a featurizer's stage, asset and table. featurizer: its `Featurizer.name`."""
    return f"feature_{featurizer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A featurizer, given by name and parameters."""

    name: str
    """Name in the registry of featurizers, or "module:Class"."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameter name -> value."""

    def build(self) -> Featurizer:
        """Return the featurizer. Raises: InvalidSpec, TypeError, ImportError."""
        return make(self.name, **self.parameters)

    @property
    def stage(self) -> str:
        """Name of the featurizer's stage."""
        return stage_name(self.build().name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Rule that drops samples whose `column` is outside the limits; NaN and infinity never pass.

    Raises: InvalidSpec if limits are not finite or out of order, or if `allowed` is a single string.
    """

    column: str
    """Column of the samples table."""
    minimum: float | None = None
    """Smallest accepted value; None: no limit."""
    maximum: float | None = None
    """Largest accepted value; None: no limit."""
    allowed: frozenset[str] | None = None
    """Accepted values; None for any."""
    required: bool = False
    """True also drops samples with a null."""

    def __post_init__(self) -> None:
        for name in ("minimum", "maximum"):
            limit = getattr(self, name)
            if limit is not None and not math.isfinite(limit):
                raise invalid_option(name, limit, "a finite number, or None", f"filter {self.column!r}")
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise InvalidSpec(
                f"filter {self.column!r}: minimum={self.minimum} is above maximum={self.maximum}; swap them",
                what="minimum and maximum",
                where=f"filter {self.column!r}",
                given=(self.minimum, self.maximum),
            )
        # "jpeg" would accept each of its letters.
        if isinstance(self.allowed, str):
            raise invalid_option("allowed", self.allowed, "a frozenset of values", f"filter {self.column!r}")

    def identity(self) -> list[str]:
        """Return strings that identify the filter in every process."""
        if self.allowed is None:
            allowed = ["any"]
        else:
            # A set's order differs between processes, and the identity is part of a fingerprint.
            allowed = sorted(map(repr, self.allowed))
        return [self.column, str(self.minimum), str(self.maximum), str(self.required), *allowed]

    def reason(self, value: Any) -> str:
        """Return why a sample with this value is dropped, or "" if it passes."""
        if value is None:
            if self.required:
                return f"{self.column} is unknown"
            return ""
        # NaN compares as false with any limit, so it would pass.
        if isinstance(value, Real | Decimal) and not math.isfinite(value):
            return f"{self.column} is not a finite number"
        if self.minimum is not None and value < self.minimum:
            return f"{self.column} = {value} is below {self.minimum}"
        if self.maximum is not None and value > self.maximum:
            return f"{self.column} = {value} is above {self.maximum}"
        if self.allowed is not None and value not in self.allowed:
            return f"{self.column} = {value!r} is not one of {', '.join(sorted(self.allowed))}"
        return ""


LabelSource = Literal["folder", ""]
"""Source of labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """A dataset, as its owner defines it.

    Raises: InvalidName for an invalid name, or if two featurizers share a name, field or column; ValueError if a share
    or rate is out of range; the errors of `Feature.build`.
    """

    name: str
    """Name of the dataset."""
    policy: CutPolicy = field(default_factory=CutPolicy)
    """Rules for cutting raw objects."""
    features: tuple[Feature, ...] = ()
    """Featurizers to apply to each sample."""
    filters: tuple[Filter, ...] = ()
    """Rules that drop samples."""
    splits: Mapping[str, float] = field(default_factory=lambda: {"train": 1.0})
    """Split -> share above 0; the shares sum to 1."""
    split_by: str = "raw_sha256"
    """"raw_sha256" or "subject", kept in one split."""
    label_from: LabelSource = ""
    """"folder": a raw object's folder is its `label`, and photos have the label's number in the field `cls`.

    "": samples have neither; a dataset whose photos have class numbers is refused.
    """
    max_reject_rate: float = 0.0
    """Share of a batch's objects, 0 to 1, duplicates included, above which damaged ones stop the batch.

    Also the share of a batch's samples above which a featurizer's refusals stop it.
    """
    max_not_media_rate: float = 0.0
    """Share of a batch's objects, 0 to 1, that may not be media, such as an error page named .jpg."""
    max_unsupported_rate: float = 1.0
    """Share of a batch's objects, 0 to 1, that may have an unsupported format."""
    max_untrue_rate: float = 0.01
    """Share of a batch's objects, 0 to 1, whose cut may differ from the source; they are left out and named."""
    max_quarantine_rate: float = 0.001
    """Share of the newest version's samples, 0 to 1, that one quarantine run may exclude; 8 more are always allowed."""
    work_timeout_s: float = 600.0
    """Time limit per object and stage, in seconds; media stages add time for the length of audio or video."""
    max_work_timeout_s: float = 21_600.0
    """Largest time limit with the added time, in seconds."""
    near_duplicates: NearDuplicates | None = None
    """Treatment of near-duplicates; None skips the search."""
    search: Search | None = None
    """Fields to index for `penstock search` after each version; None makes no index."""
    gate: Gate = GATE
    """Checks that a batch must pass before publication."""
    alerts: Limits = LIMITS
    """Delays after which a person is alerted."""
    sources: tuple[Source, ...] = (LANDING,)
    """Locations of raw objects, see `sources`."""
    batch: BatchLimits = DEFAULT_LIMITS
    """Sizes of batches, and their waits."""
    streaming: bool = False
    """True publishes every batch as soon as it passes, and looks for new objects every few seconds."""
    upkeep: Upkeep = UPKEEP
    """Owners, tenant and schedules."""
    rebuild_of: str = ""
    """Dataset whose batches and splits it shares (`make_batches.rebuild_of`), or ""."""

    def __post_init__(self) -> None:
        check_dataset_name(self.name)
        if self.rebuild_of and check_dataset_name(self.rebuild_of) == self.name:
            raise InvalidSpec(
                f"rebuild_of={self.rebuild_of!r} is the dataset itself; give the rebuild a name of its own",
                what="rebuild_of",
                given=self.rebuild_of,
                accepted="another dataset",
            )
        check_sources(self.sources)
        featurizers = [feature.build() for feature in self.features]
        check_distinct_names(self.name, featurizers)
        if self.near_duplicates is not None:
            _check_comparable(self.near_duplicates, featurizers)
        if self.search is not None and not self.format:
            check_searchable(self.search, _output_fields(featurizers), self.name)
        if not all(share > 0 for share in self.splits.values()) or not (
            abs(sum(self.splits.values()) - 1) <= 1e-9  # excludes NaN
        ):
            raise invalid_option("splits", dict(self.splits), "shares above 0 that sum to 1")
        if self.split_by not in ("raw_sha256", "subject"):
            raise invalid_option("split_by", self.split_by, "'raw_sha256', 'subject'")
        if self.label_from not in get_args(LabelSource):
            raise invalid_option("label_from", self.label_from, "'folder' or ''")
        for name in (
            *("max_reject_rate", "max_not_media_rate", "max_unsupported_rate"),
            *("max_untrue_rate", "max_quarantine_rate"),
        ):
            if not 0 <= getattr(self, name) <= 1:
                raise invalid_option(name, getattr(self, name), "0 to 1")
        if self.streaming and not self.batch.max_wait_s <= MAX_STREAMING_WAIT_S:
            raise InvalidSpec(
                f"streaming with max_wait_s={self.batch.max_wait_s}: set batch=BatchLimits(max_wait_s=0); "
                f"accepted is up to {MAX_STREAMING_WAIT_S:g}",
                what="max_wait_s",
                where="streaming",
                given=self.batch.max_wait_s,
                accepted=f"0 to {MAX_STREAMING_WAIT_S:g}",
            )
        for name in ("work_timeout_s", "max_work_timeout_s"):
            if not 0 < (seconds := getattr(self, name)) < math.inf:
                raise invalid_option(name, seconds, "seconds above 0")

    @property
    def format(self) -> str:
        """Format of the raw objects; "" for media."""
        # All sources of a dataset have the same settings (`check_sources`), here and below.
        return self.sources[0].format

    @property
    def ingest_terms(self) -> list[object]:
        """Plain values that decide how a format's samples are ingested; empty for media."""
        if not self.format:
            return []
        terms: list[object] = [self.format, str(self.in_place)]
        source = self.sources[0]
        if source.is_choosy:
            terms.append(source.choices.to_json())
        return terms

    @property
    def in_place(self) -> bool:
        """True if samples stay in the source."""
        return self.sources[0].keep == "in place"

    @property
    def keyed_by_place(self) -> bool:
        """True if keys are unique in the whole source, not only within an object."""
        return self.format in KEYED_BY_PLACE and self.sources[0].key is not None

    def split_of(self, identity: str) -> str:
        r"""Return the split of a raw object or subject, which never changes.

        The blake2b-64 of "<dataset>\\0<identity>", as a fraction of 2^64, is compared with the cumulative shares in the
        order of split names. A rebuild has its original dataset's splits.
        """
        return split_of(identity, self.splits, self.rebuild_of or self.name)


def _output_fields(featurizers: Sequence[Featurizer]) -> set[str]:
    fields: set[str] = set()
    for featurizer in featurizers:
        for names in featurizer.outputs.values():
            fields.update(names)
    return fields


def _check_comparable(policy: NearDuplicates, featurizers: Sequence[Featurizer]) -> None:
    columns = {name for one in featurizers for names in one.columns.values() for name in names}
    fields = _output_fields(featurizers)
    if "phash" not in columns and policy.text is None:
        raise InvalidSpec(
            "near_duplicates needs the column 'phash': add Feature(name='phash') to features",
            what="near_duplicates",
            accepted="the column 'phash'",
        )
    if policy.text and policy.text.field not in fields:
        raise InvalidSpec(
            f"near_duplicates compares documents by the field {policy.text.field!r}, which no featurizer of the "
            f"dataset makes; they make {', '.join(sorted(fields)) or 'none'}. Add Feature(name='minhash') to features",
            what="text",
            where="near_duplicates",
            given=policy.text.field,
            accepted=sorted(fields),
        )
    if policy.embedding and policy.embedding.field not in fields:
        raise InvalidSpec(
            f"near_duplicates compares embeddings in the field {policy.embedding.field!r}, which no featurizer of the "
            f"dataset makes; they make {', '.join(sorted(fields)) or 'none'}",
            what="embedding",
            where="near_duplicates",
            given=policy.embedding.field,
            accepted=sorted(fields),
        )
