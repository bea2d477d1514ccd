"""The layout of windows: instants or rows of each field, the rule that picks values, and padding."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from ...errors import InvalidPlan
from ..random.plan_hash import whole

RULES = ("last", "nearest", "linear")
"""The last value up to an instant; the nearest one, of two the earlier; a straight line between neighbours."""
MAX_OFFSETS = 2**16
"""Most values of one field in a window."""
AGE_NS, IS_PAD, DEPTH = "age_ns", "is_pad", "depth"
"""Suffixes of the fields that windows add to a batch: `<field>.age_ns`."""
ANCHOR_NS, ROW = "anchor_ns", "row"
"""Fields that windows add to a batch once."""
TEXT, MAX_STYLES = "text", 64
"""Field of the language that is active at the anchor, and most styles to look for."""

MAX_COLUMNS = 64
"""Most columns that windows hand out."""

Time: TypeAlias = int | str | Fraction
"""Whole nanoseconds, a text such as "20ms", or seconds as a fraction."""
_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_TEXT = re.compile(r"([+-]?)(\d{1,19})(?:\.(\d{1,9}))?(ns|us|ms|s)")


@dataclass(frozen=True, slots=True)
class Offsets:
    """Places of a field's values, relative to the anchor's row."""

    unit: Literal["ns", "rows"]
    """Nanoseconds after the anchor's time, or rows after the field's row in force at that time."""
    values: tuple[int, ...]
    """One per value, in the order of the batch."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan's JSON."""
        return {self.unit: list(self.values)}


def rows(first: int, stop: int, step: int = 1) -> Offsets:
    """Return every `step`-th row from `first` to before `stop`, counted from the row in force: `rows(0, 50)`.

    Raises: InvalidPlan.
    """
    return _offsets("rows", range(_row(first), _row(stop), whole("rows: step", step, 1, 2**31)), "rows")


def times(first: Time, stop: Time, step: Time) -> Offsets:
    """Return the instants from `first` to before `stop`: `times("-1s", 0, "50ms")` has 20. Raises: InvalidPlan."""
    step_ns = nanoseconds(step)
    if step_ns < 1:
        raise InvalidPlan(f"times: step = {step!r}; at least 1 ns is needed")
    return _offsets("ns", range(nanoseconds(first), nanoseconds(stop), step_ns), "times")


def nanoseconds(time: Time) -> int:
    """Return a time in ns. Raises: InvalidPlan for a float, or a time that is no whole number of ns."""
    exact: Fraction | None = None
    if isinstance(time, Fraction):
        exact = time * 10**9
    elif isinstance(time, str) and (match := _TEXT.fullmatch(time.strip())):
        sign, before, after, unit = match.groups()
        exact = Fraction(f"{sign}{before}.{after or 0}") * _NS[unit]
    elif hasattr(time, "__index__") and not isinstance(time, bool):
        exact = Fraction(time.__index__())
    if exact is not None and exact.denominator == 1 and abs(exact) <= 2**62:
        return int(exact)
    raise InvalidPlan(
        f"{time!r} is no time; accepted: whole nanoseconds, a text such as '20ms' or '-0.5s', or seconds as a Fraction "
        "that is a whole number of ns. For frames of 1/30 s use loader.rows"
    )


def _row(value: object) -> int:
    return whole("rows", value, -(2**31), 2**31)


def _offsets(unit: Literal["ns", "rows"], values: Sequence[int], where: str) -> Offsets:
    if not 1 <= len(values) <= MAX_OFFSETS:
        raise InvalidPlan(f"{where}: {len(values)} values; 1 to {MAX_OFFSETS} are needed")
    return Offsets(unit, tuple(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLayout:
    """Values of a window, field by field."""

    anchor: str
    """Stream whose rows the windows stand at."""
    every: int
    """Rows from one window to the next."""
    at: Mapping[str, Offsets]
    """Field -> places of its values."""
    rule: Mapping[str, str]
    """Field -> rule other than "last"."""
    pad: Literal["mask", "inside"]
    """"mask" repeats the first or last value outside of the episode; "inside" allows only windows that fit."""
    max_age_ns: int | None
    """Age above which a value counts as padding, or None."""
    text: tuple[str, ...] = ()
    """Styles of language, of which the first active one is the field `TEXT`."""
    columns: tuple[str, ...] = ()
    """Columns of the samples table whose values are batch fields, such as "robot"."""
    keep: str | None = None
    """Stream of truth values, one per row of the anchor: windows stand at true rows."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan's JSON."""
        return {
            **({"text": list(self.text)} if self.text else {}),
            "anchor": self.anchor,
            "every": self.every,
            "at": {field: offsets.to_json() for field, offsets in self.at.items()},
            "rule": dict(self.rule),
            "pad": self.pad,
            "max_age_ns": self.max_age_ns,
            **({} if self.keep is None else {"keep": self.keep}),
            **({"columns": list(self.columns)} if self.columns else {}),
        }

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "WindowLayout":
        """Return the layout whose `to_json()` is `body`. Raises: InvalidPlan."""
        try:
            at = {
                field: (times_of if "ns" in places else rows_of)(places)
                for field, places in body["at"].items()
            }
            return layout_of(
                body["anchor"],
                at,
                body["every"],
                body["rule"],
                body["pad"],
                body["max_age_ns"],
                body.get("text", ()),
                keep=body.get("keep"),
                columns=body.get("columns", ()),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise InvalidPlan(f"a plan's windows: {type(error).__name__}: {error}") from error

    @property
    def span(self) -> tuple[int, int]:
        """(rows needed before the anchor's row, after it) by windows that fit."""
        inside = self.at[self.anchor].values if self.anchor in self.at else (0,)
        return max(0, -min(inside)), max(0, max(inside))


def times_of(places: Mapping[str, Any]) -> Offsets:
    """Return instants of a plan's JSON. Raises: InvalidPlan."""
    return _offsets("ns", [nanoseconds(time) for time in places["ns"]], "at")


def rows_of(places: Mapping[str, Any]) -> Offsets:
    """Return rows of a plan's JSON. Raises: InvalidPlan."""
    return _offsets("rows", [_row(row) for row in places["rows"]], "at")


Places: TypeAlias = Offsets | Sequence[Time]
"""`rows(0, 50)`, `times(...)`, or a list of times."""


def layout_of(
    anchor: str,
    at: Mapping[str, Places],
    every: int = 1,
    rule: Mapping[str, str] | None = None,
    pad: str = "mask",
    max_age: Time | None = None,
    text: Sequence[str] = (),
    *,
    keep: str | None = None,
    columns: Sequence[str] = (),
) -> WindowLayout:
    """Return a layout, checked. Raises: InvalidPlan."""
    if not isinstance(anchor, str) or not anchor:
        raise InvalidPlan(
            f"windows: anchor = {anchor!r}; the name of an array field is needed, such as 'action.npy'"
        )
    if not isinstance(at, Mapping) or not at:
        raise InvalidPlan(
            f"windows: at = {at!r}; a dict of field -> times or loader.rows(...) is needed, such as "
            "{'state.npy': [0], 'action.npy': loader.rows(0, 50)}"
        )
    places = {field: _places(field, value) for field, value in at.items()}
    rules = dict(rule or {})
    for field, name in rules.items():
        if field not in places or name not in RULES:
            raise InvalidPlan(
                f"windows: rule[{field!r}] = {name!r}; accepted: a field of at= with one of {RULES}"
            )
        if name != "last" and places[field].unit == "rows":
            raise InvalidPlan(
                f"windows: rule[{field!r}] = {name!r}, and at={field!r} names rows, which have no rule"
            )
    if pad not in ("mask", "inside"):
        raise InvalidPlan(f"windows: pad = {pad!r}; accepted: 'mask', 'inside'")
    if pad == "inside" and any(
        places_of.unit == "ns" and any(places_of.values) for places_of in places.values()
    ):
        raise InvalidPlan(
            "windows: pad='inside' counts rows; give the anchor's values by loader.rows, or use pad='mask'"
        )
    if keep is not None and (not isinstance(keep, str) or not keep):
        raise InvalidPlan(
            f"windows: keep = {keep!r}; the name of a bool stream is needed, such as 'keep.npy'"
        )
    max_age_ns = None if max_age is None else nanoseconds(max_age)
    if max_age_ns is not None and max_age_ns < 0:
        raise InvalidPlan(f"windows: max_age = {max_age!r}; a time of at least 0 is needed")
    return WindowLayout(
        anchor=anchor,
        every=whole("windows: every", every, 1, 2**31),
        at=places,
        rule={field: name for field, name in rules.items() if name != "last"},
        pad="inside" if pad == "inside" else "mask",
        max_age_ns=max_age_ns,
        text=_styles(text),
        keep=keep,
        columns=_columns(columns),
    )


def _styles(text: Any) -> tuple[str, ...]:
    is_list = isinstance(text, Sequence) and not isinstance(text, str) and len(text) <= MAX_STYLES
    if (
        not is_list
        or not all(isinstance(style, str) and style for style in text)
        or len(set(text)) < len(text)
    ):
        raise InvalidPlan(
            f"windows: text = {text!r:.200}; up to {MAX_STYLES} different styles of language are needed, such as "
            "('subtask', 'task')"
        )
    return tuple(text)


def _columns(columns: Any) -> tuple[str, ...]:
    is_list = isinstance(columns, Sequence) and not isinstance(columns, str) and len(columns) <= MAX_COLUMNS
    if not is_list or not all(isinstance(name, str) and name for name in columns):
        raise InvalidPlan(
            f"windows: columns = {columns!r:.200}; up to {MAX_COLUMNS} names of columns are needed, such as ('robot',)"
        )
    return tuple(dict.fromkeys(columns))


def _places(field: object, value: Any) -> Offsets:
    if not isinstance(field, str):
        raise InvalidPlan(f"windows: at names {field!r}; fields are texts")
    if isinstance(value, Offsets):
        return value
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidPlan(
            f"windows: at[{field!r}] = {value!r}; a list of times or loader.rows(...) is needed"
        )
    try:
        return _offsets("ns", [nanoseconds(time) for time in value], f"at[{field!r}]")
    except InvalidPlan as error:
        raise InvalidPlan(f"windows: at[{field!r}]: {error}") from None
