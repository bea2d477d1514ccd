"""Check that a column becomes the same field or metadata column in all tables."""

from collections.abc import Collection, Iterable, Mapping
from threading import Lock

import numpy as np

from ...errors import FieldMismatch, InvalidSample
from ..names import escape_name
from .arrow_columns import Column
from .plain_values import FLAT_WORDS

_FIELD, _METADATA = "the field ", "the column "


class ColumnAgreement:
    """Remembers what each column became in the first table that has it. Thread-safe."""

    def __init__(self) -> None:
        self._lock, self._first = Lock(), dict[str, tuple[str, str]]()

    @property
    def becomes(self) -> dict[str, str]:
        """Column -> human-readable name of the field or metadata column."""
        return {column: what for column, (what, _) in self._first.items()}

    def check(self, object_key: str, columns: Iterable[Column]) -> None:
        """Raise InvalidSample if a column became something else in an earlier table.

        columns: the table's. A source column's main one comes first.
        """
        types = dict[str, str]()
        for other in columns:
            types.setdefault(other.column, f"{_FIELD if other.kind == 'field' else _METADATA}{other.name}")
        with self._lock:
            for column, what in types.items():
                first, of = self._first.setdefault(column, (what, object_key))
                if what != first:
                    raise InvalidSample(differs(column, (first, of), (what, object_key)))

    def check_known(self, fields: Collection[str], of: str) -> None:
        """Raise FieldMismatch if a dataset stores a column's numbers at another width. of: the dataset."""
        for column, (what, object_key) in self._first.items():
            if known := other_width(column, what, fields):
                raise FieldMismatch(differs(column, (f"{_FIELD}{known}", of), (what, object_key)))


def why_other(
    types: Mapping[str, str],
    object_key: str,
    before: Mapping[str, tuple[str, str]],
    fields: Collection[str],
    dataset: str,
) -> str:
    """Return the reason why an object's columns disagree with other objects' or the dataset's; "" if they agree.

    types: column -> what it becomes. before: column -> (what it became, in which object). fields: the dataset's.
    """
    for column, what in types.items():
        if column in before and before[column][0] != what:
            return differs(column, before[column], (what, object_key))
        if known := other_width(column, what, fields):
            return differs(column, (f"{_FIELD}{known}", dataset), (what, object_key))
    return ""


def other_width(column: str, what: str, fields: Collection[str]) -> str:
    name = escape_name(what.removeprefix(_FIELD))
    if not what.startswith(_FIELD) or name in fields or name.rpartition(".")[2] not in FLAT_WORDS:
        return ""
    stem = escape_name(column)
    return next((known for word in FLAT_WORDS if (known := f"{stem}.{word}") in fields), "")


def differs(column: str, first: tuple[str, str], second: tuple[str, str]) -> str:
    """Return the message for a column that becomes two things. first, second: (what it becomes, in which object)."""
    words = [what.rpartition(".")[2] for what, _ in (first, second)]
    wider = ""
    if all(word in FLAT_WORDS for word in words):
        wider = np.promote_types(*words).str.lstrip("<|")
    choice = wider if wider and wider[0] in {word[0] for word in words} else "json"
    return (
        f"column {column!r} becomes {first[0]} in {first[1]}, and {second[0]} in {second[1]}: name one form for all "
        f"(--field {column}={choice}), or leave the column out (--without {column})"
    )
