"""Featurizers: pure functions from the encoded fields of one sample to new fields and columns."""

import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self, get_args

from loader.errors import Conflict, InvalidName, InvalidSpec
from loader.modalities import check_field

from ..media.unit import Kind
from .decoding import kind_inputs

Column = bool | int | float | str | None

EPISODE = "episode"
"""Kind of samples with streams; the samples table names them by their media, such as video."""
KINDS = frozenset((*get_args(Kind), EPISODE))
"""Kinds of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Features of one sample.

    Raises: InvalidField for a field name, TypeError for a column's type, ValueError for NaN or infinity.
    """

    fields: Mapping[str, Any]
    """Field name -> value for `loader.modalities.encode`; the same names for every sample of a kind."""
    columns: Mapping[str, Column]
    """Column, named with its unit -> finite value, or None if unknown; the same names for every sample of a kind."""

    def __post_init__(self) -> None:
        for field in self.fields:
            check_field(field)
        for name, value in self.columns.items():
            # `type` rather than isinstance: numpy's float64 is a float, and its text differs.
            if type(value) not in (bool, int, float, str, type(None)):
                raise TypeError(f"column {name!r} is {value!r}; accepted: bool, int, float, str, None")
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidSpec(
                    f"column {name!r} is {value}; store None for what cannot be measured",
                    what=name,
                    given=value,
                    accepted="finite numbers",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Featurizer(ABC):
    """Base class of featurizers: subclasses define a name, inputs, outputs and `__call__`.

    Instances are picklable and stateless. The dataclass fields image, video, audio, text and episode name the field to
    read for that kind; None skips it. All other fields are parameters and part of the version.
    """

    code: ClassVar[int] = 1
    """Code version, raised with every change of the features."""
    output_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of every sample; override `outputs` if kinds differ."""
    output_columns: ClassVar[tuple[str, ...]] = ()
    """Columns of every sample; override `columns` if kinds differ."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the featurizer, and of the group that stores its fields."""

    @property
    def version(self) -> str:
        """Version, which changes whenever the features may change (see `version_of`)."""
        return version_of(self.code, asdict(self))

    def of_fields(self, facts: Mapping[str, Mapping[str, Any]]) -> Self:
        """Return the featurizer for samples whose fields have these facts; most featurizers need none."""
        return self

    @property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        """Kind -> names of the fields to read; `*.ns.npy` reads all that end so."""
        return kind_inputs(
            **{item.name: getattr(self, item.name) for item in fields(self) if item.name in KINDS}
        )

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds that the featurizer accepts."""
        return frozenset(self.inputs)

    @property
    def outputs(self) -> Mapping[str, tuple[str, ...]]:
        """Kind -> fields written for every sample; () if there are only columns."""
        return dict.fromkeys(self.inputs, self.output_fields)

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Kind -> score columns written for every sample; () if there are only fields."""
        return dict.fromkeys(self.inputs, self.output_columns)

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """Output field -> facts (text, integers, lists), true for every sample of this `version`.

        Changed facts need a new `code` (docs/format.md).
        """
        return {}

    @abstractmethod
    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        """Return the features of one sample, given the encoded bytes of the kind's inputs.

        Raises: assets.media.unit.Unusable (rejected, stage "featurize") if the bytes cannot be used; ValueError for an
        unaccepted kind. Whatever the bytes, nothing else is raised.
        """


def version_of(code: int, parameters: Mapping[str, Any], *weights: str) -> str:
    """Return '<code>-<8 hex>': the code version, and a hash of the parameters (JSON) and weights' sha256."""
    # Sorted: the order in which a recipe names parameters makes no new version.
    stated = json.dumps(
        [dict(parameters), *weights],
        sort_keys=True,
        ensure_ascii=False,
        allow_nan=False,
    )
    return f"{code}-{hashlib.sha256(stated.encode()).hexdigest()[:8]}"


RESERVED_COLUMNS = frozenset({"key", "code", "reason", "refused", "is_known", "kind", "left_out"})
"""Names of the tables' own columns."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_distinct_names(dataset: str, featurizers: Iterable[Featurizer]) -> None:
    """Raise InvalidName if two featurizers of a dataset share a name, field or column, even for different kinds."""
    owners: dict[tuple[str, str], str] = {("column", name): "penstock itself" for name in RESERVED_COLUMNS}
    for featurizer in featurizers:
        if not _NAME.fullmatch(featurizer.name):
            raise InvalidName(
                f"featurizer name {featurizer.name!r}: use lower-case letters, digits and '_'",
                what="featurizer",
                where=dataset,
                given=featurizer.name,
                accepted="lower-case letters, digits and '_'",
            )
        names = {
            ("name", featurizer.name),
            *(("field", name) for names in featurizer.outputs.values() for name in names),
            *(("column", name) for names in featurizer.columns.values() for name in names),
        }
        for part, name in sorted(names):
            if owner := owners.get((part, name)):
                raise InvalidName(
                    f"dataset {dataset!r}: featurizer {featurizer.name!r} has the {part} {name!r}, and so has "
                    f"{owner}; give one of them another name, or leave one out",
                    what=f"{part} {name!r}",
                    where=dataset,
                    given=[owner, f"featurizer {featurizer.name!r}"],
                )
            owners[part, name] = f"featurizer {featurizer.name!r}"


def check_new_names(
    featurizer: Featurizer,
    kind: str,
    *,
    groups: Collection[str],
    fields: Collection[str],
    columns: Collection[str],
) -> None:
    """Raise Conflict if a featurizer's group, fields or columns clash with the units' own."""
    clashes = [
        *(f"group {name!r}" for name in (featurizer.name,) if name in groups and featurizer.outputs[kind]),
        *(f"field {name!r}" for name in featurizer.outputs[kind] if name in fields),
        *(f"column {name!r}" for name in featurizer.columns[kind] if name in columns),
    ]
    if clashes:
        raise Conflict(
            f"featurizer {featurizer.name!r} would make {', '.join(clashes)}, which units of kind {kind!r} have "
            "already; rename them in the featurizer",
            what=featurizer.name,
            where=kind,
            given=clashes,
        )
