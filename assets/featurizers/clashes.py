"""Names that two would use: featurizers of one dataset, or a featurizer and the units it is computed of.

Found out from what featurizers declare, before any work is done.
"""

import re
from collections.abc import Collection, Iterable

from loader.errors import Conflict, InvalidName

from .featurizer import Featurizer

TAKEN = frozenset({"key", "code", "reason", "refused", "is_known", "kind", "left_out"})
"""Columns that the tables of features and samples have of their own."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_apart(dataset: str, featurizers: Iterable[Featurizer]) -> None:
    """Check that no two featurizers of a dataset share a name, a field or a column, whatever kinds they take.

    A column means one thing. Raises: InvalidName, naming both.
    """
    owners: dict[tuple[str, str], str] = {("column", name): "penstock itself" for name in TAKEN}
    for featurizer in featurizers:
        if not _NAME.fullmatch(featurizer.name):
            raise InvalidName(f"featurizer name {featurizer.name!r}: use lower-case letters, digits and '_'")
        mine = {
            ("name", featurizer.name),
            *(("field", name) for names in featurizer.outputs.values() for name in names),
            *(("column", name) for names in featurizer.columns.values() for name in names),
        }
        for what, name in sorted(mine):
            if owner := owners.get((what, name)):
                raise InvalidName(
                    f"dataset {dataset!r}: featurizer {featurizer.name!r} has the {what} {name!r}, and so has "
                    f"{owner}; give one of them another name, or leave one out"
                )
            owners[what, name] = f"featurizer {featurizer.name!r}"


def check_beside(
    featurizer: Featurizer,
    kind: str,
    *,
    groups: Collection[str],
    fields: Collection[str],
    columns: Collection[str],
) -> None:
    """Check that a featurizer's group, fields and columns of a kind are none that its units have.

    Raises: Conflict.
    """
    taken = [
        *(f"group {name!r}" for name in (featurizer.name,) if name in groups and featurizer.outputs[kind]),
        *(f"field {name!r}" for name in featurizer.outputs[kind] if name in fields),
        *(f"column {name!r}" for name in featurizer.columns[kind] if name in columns),
    ]
    if taken:
        raise Conflict(
            f"featurizer {featurizer.name!r} would make {', '.join(taken)}, which units of kind {kind!r} have "
            "already; rename them in the featurizer"
        )
