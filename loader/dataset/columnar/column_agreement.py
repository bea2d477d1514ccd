"""Check that a column becomes the same field or metadata column in all tables."""

from collections.abc import Collection, Iterable, Mapping
from threading import Lock

import numpy as np

from ...errors import FieldMismatch, InvalidSample
from ..names import escape_name
from .arrow_columns import Column
from .plain_values import FLAT_WORDS

_FIELD = "the field "
_METADATA = "the column "


class ColumnAgreement:
    """Remembers what each column became in the first table that has it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._first: dict[str, tuple[str, str]] = {}  # column -> (what it became, in which object)

    @property
    def becomes(self) -> dict[str, str]:
        """Column -> human-readable name of the field or metadata column."""
        return {column: what for column, (what, _) in self._first.items()}

    def check(self, object_key: str, columns: Iterable[Column]) -> None:
        """Raise InvalidSample if a column became something else in an earlier table.

        columns: the table's. A source column's main one comes first.
        """
        types: dict[str, str] = {}
        for item in columns:
            kind = _FIELD if item.kind == "field" else _METADATA
            types.setdefault(item.column, f"{kind}{item.name}")
        with self._lock:
            for column, what in types.items():
                first = self._first.setdefault(column, (what, object_key))
                first_what, _ = first
                if what != first_what:
                    raise InvalidSample(
                        differs(column, first, (what, object_key)),
                        what=f"column {column!r}",
                        where=object_key,
                        given=what,
                        accepted=first_what,
                    )

    def check_known(self, fields: Collection[str], of: str) -> None:
        """Raise FieldMismatch if a dataset stores a column's numbers at another width. of: the dataset."""
        for column, (what, object_key) in self._first.items():
            known = other_width(column, what, fields)
            if known:
                known_what = f"{_FIELD}{known}"
                raise FieldMismatch(
                    differs(column, (known_what, of), (what, object_key)),
                    what=f"column {column!r}",
                    where=object_key,
                    given=what,
                    accepted=known_what,
                )


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
        second = (what, object_key)
        if column in before:
            what_before, _ = before[column]
            if what_before != what:
                return differs(column, before[column], second)
        known = other_width(column, what, fields)
        if known:
            first = (f"{_FIELD}{known}", dataset)
            return differs(column, first, second)
    return ""


def other_width(
    column: str,
    what: str,
    fields: Collection[str],
) -> str:
    """Return the dataset's field that has a column's numbers at another width, or ""."""
    if not what.startswith(_FIELD):
        return ""
    name = escape_name(what.removeprefix(_FIELD))
    word = name.rpartition(".")[2]
    if name in fields or word not in FLAT_WORDS:
        return ""
    stem = escape_name(column)
    for other_word in FLAT_WORDS:
        known = f"{stem}.{other_word}"
        if known in fields:
            return known
    return ""


def differs(
    column: str,
    first: tuple[str, str],
    second: tuple[str, str],
) -> str:
    """Return the message for a column that becomes two things. first, second: (what it becomes, in which object)."""
    first_what, first_object = first
    second_what, second_object = second
    words = [what.rpartition(".")[2] for what in (first_what, second_what)]
    # JSON holds numbers of any kind; the wider of two widths of one kind holds both.
    form = "json"
    if all(word in FLAT_WORDS for word in words):
        wider = np.promote_types(*words).str.lstrip("<|")
        if any(word[0] == wider[0] for word in words):
            form = wider
    return (
        f"column {column!r} becomes {first_what} in {first_object}, and {second_what} in {second_object}: name one "
        f"form for all (--field {column}={form}), or leave the column out (--without {column})"
    )
