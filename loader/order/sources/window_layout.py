"""The layout of windows: instants or rows of each field, the rule that picks values, and padding."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from ...errors import InvalidPlan
from ..random.plan_hash import int_in_range

RULES = ("last", "nearest", "linear")
"""The last value up to an instant; the nearest one, of two the earlier; a straight line between neighbours."""
MAX_OFFSETS = 2**16
"""Most values of one field in a window."""
AGE_NS = "age_ns"
IS_PAD = "is_pad"
DEPTH = "depth"
"""Suffixes of the fields that windows add to a batch: `<field>.age_ns`."""
ANCHOR_NS = "anchor_ns"
ROW = "row"
"""Fields that windows add to a batch once."""
TEXT = "text"
"""Field of the language that is active at the anchor."""
MAX_STYLES = 64
"""Most styles of language to look for."""
MAX_COLUMNS = 64
"""Most columns that windows hand out."""

Time: TypeAlias = int | str | Fraction
"""Whole nanoseconds, a text such as "20ms", or seconds as a fraction."""
_NS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
}
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


def rows(
    first: int,
    stop: int,
    step: int = 1,
) -> Offsets:
    """Return every `step`-th row from `first` to before `stop`, counted from the row in force: `rows(0, 50)`.

    Raises: InvalidPlan.
    """
    first_row = _row(first)
    stop_row = _row(stop)
    every = int_in_range("rows: step", step, 1, 2**31)
    values = range(first_row, stop_row, every)
    return _offsets("rows", values, "rows")


def times(
    first: Time,
    stop: Time,
    step: Time,
) -> Offsets:
    """Return the instants from `first` to before `stop`: `times("-1s", 0, "50ms")` has 20. Raises: InvalidPlan."""
    step_ns = nanoseconds(step)
    if step_ns < 1:
        raise InvalidPlan(
            f"times: step = {step!r}; at least 1 ns is needed",
            what="step",
            given=step,
            accepted="at least 1 ns",
        )
    first_ns = nanoseconds(first)
    stop_ns = nanoseconds(stop)
    values = range(first_ns, stop_ns, step_ns)
    return _offsets("ns", values, "times")


def nanoseconds(time: Time) -> int:
    """Return a time in ns. Raises: InvalidPlan for a float, or a time that is not a whole number of ns."""
    exact: Fraction | None = None
    if isinstance(time, Fraction):
        exact = time * 10**9
    elif isinstance(time, str) and (match := _TEXT.fullmatch(time.strip())):
        sign, before, after, unit = match.groups(default="0")
        number = Fraction(f"{sign}{before}.{after}")  # a float would round
        exact = number * _NS[unit]
    elif hasattr(time, "__index__") and not isinstance(time, bool):
        exact = Fraction(time.__index__())
    if exact is not None:
        is_integer = exact.denominator == 1
        is_small = abs(exact) <= 2**62  # sums of two such times fit into int64
        if is_integer and is_small:
            return int(exact)
    raise InvalidPlan(
        f"{time!r} is no time; accepted: whole nanoseconds, a text such as '20ms' or '-0.5s', or seconds as a Fraction "
        "that is a whole number of ns. For frames of 1/30 s use loader.rows",
        what="time",
        given=time,
        accepted="a whole number of nanoseconds",
    )


def _row(value: object) -> int:
    return int_in_range("rows", value, -(2**31), 2**31)


def _offsets(
    unit: Literal["ns", "rows"],
    values: Sequence[int],
    where: str,
) -> Offsets:
    """Return the offsets. Raises: InvalidPlan for none, or too many.

    where: the caller's function or argument that gave the values, such as "rows" or "at", for the error's message.
    """
    n_values = len(values)
    if not 1 <= n_values <= MAX_OFFSETS:
        raise InvalidPlan(
            f"{where}: {n_values} values; 1 to {MAX_OFFSETS} are needed",
            what=where,
            given=n_values,
            accepted=f"1 to {MAX_OFFSETS} values",
        )
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
        at = {}
        for field, offsets in self.at.items():
            at[field] = offsets.to_json()

        # `text`, `keep` and `columns` are younger than plans that were saved without them, whose ids must stay. So they
        # are absent if the layout does not use them.
        body: dict[str, Any] = {}
        if self.text:
            body["text"] = list(self.text)
        body["anchor"] = self.anchor
        body["every"] = self.every
        body["at"] = at
        body["rule"] = dict(self.rule)
        body["pad"] = self.pad
        body["max_age_ns"] = self.max_age_ns
        if self.keep is not None:
            body["keep"] = self.keep
        if self.columns:
            body["columns"] = list(self.columns)
        return body

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "WindowLayout":
        """Return the layout whose `to_json()` is `body`. Raises: InvalidPlan."""
        try:
            at = {}
            for field, offsets in body["at"].items():
                if "ns" in offsets:
                    at[field] = parse_times(offsets)
                else:
                    at[field] = parse_rows(offsets)
            return build_layout(
                anchor=body["anchor"],
                at=at,
                every=body["every"],
                rule=body["rule"],
                pad=body["pad"],
                max_age=body["max_age_ns"],
                text=body.get("text", ()),
                keep=body.get("keep"),
                columns=body.get("columns", ()),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            kind = type(error).__name__
            raise InvalidPlan(f"a plan's windows: {kind}: {error}") from error

    @property
    def span(self) -> tuple[int, int]:
        """Number of anchor rows before, and after, the row at which a window stands that lies inside its episode."""
        offsets: tuple[int, ...] = (0,)  # the window has no values of the anchor itself
        if self.anchor in self.at:
            offsets = self.at[self.anchor].values
        earliest = min(offsets)
        latest = max(offsets)
        before = max(0, -earliest)
        after = max(0, latest)
        return before, after


def parse_times(offsets: Mapping[str, Any]) -> Offsets:
    """Return instants of a plan's JSON. Raises: InvalidPlan."""
    values = [nanoseconds(time) for time in offsets["ns"]]
    return _offsets("ns", values, "at")


def parse_rows(offsets: Mapping[str, Any]) -> Offsets:
    """Return rows of a plan's JSON. Raises: InvalidPlan."""
    values = [_row(row) for row in offsets["rows"]]
    return _offsets("rows", values, "at")


Places: TypeAlias = Offsets | Sequence[Time]
"""`rows(0, 50)`, `times(...)`, or a list of times."""


def build_layout(
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
            f"windows: anchor = {anchor!r}; the name of an array field is needed, such as 'action.npy'",
            what="anchor",
            given=anchor,
            accepted="the name of an array field",
        )
    if not isinstance(at, Mapping) or not at:
        raise InvalidPlan(
            f"windows: at = {at!r}; a dict of field -> times or loader.rows(...) is needed, such as "
            "{'state.npy': [0], 'action.npy': loader.rows(0, 50)}",
            what="at",
            given=at,
            accepted="a dict of field -> times or loader.rows(...)",
        )
    offsets_by_field = {}
    for field, value in at.items():
        offsets_by_field[field] = _check_offsets(field, value)
    if keep is not None and (not isinstance(keep, str) or not keep):
        raise InvalidPlan(
            f"windows: keep = {keep!r}; the name of a bool stream is needed, such as 'keep.npy'",
            what="keep",
            given=keep,
            accepted="the name of a bool stream",
        )
    max_age_ns: int | None = None
    if max_age is not None:
        max_age_ns = nanoseconds(max_age)
        if max_age_ns < 0:
            raise InvalidPlan(
                f"windows: max_age = {max_age!r}; a time of at least 0 is needed",
                what="max_age",
                given=max_age,
                accepted="a time of at least 0",
            )
    return WindowLayout(
        anchor=anchor,
        every=int_in_range("windows: every", every, 1, 2**31),
        at=offsets_by_field,
        rule=_rules(rule, offsets_by_field),
        pad=_check_pad(pad, offsets_by_field),
        max_age_ns=max_age_ns,
        text=_styles(text),
        keep=keep,
        columns=_columns(columns),
    )


def _check_pad(pad: str, at: Mapping[str, Offsets]) -> Literal["mask", "inside"]:
    if pad == "mask":
        return "mask"
    if pad != "inside":
        raise InvalidPlan(
            f"windows: pad = {pad!r}; accepted: 'mask', 'inside'",
            what="pad",
            given=pad,
            accepted=["mask", "inside"],
        )
    for offsets in at.values():
        # Windows inside are counted by rows of the anchor. Only the anchor's own time, 0, has a known row.
        if offsets.unit == "ns" and any(offsets.values):
            raise InvalidPlan(
                "windows: pad='inside' counts rows; give the anchor's values by loader.rows, or use pad='mask'",
                what="pad",
                given=pad,
                accepted="'mask', or rows of the anchor",
            )
    return "inside"


def _rules(
    rule: Mapping[str, str] | None,
    at: Mapping[str, Offsets],
) -> dict[str, str]:
    """Return the rules other than "last", checked."""
    rules: dict[str, str] = {}
    if not rule:
        return rules
    for field, name in dict(rule).items():
        if field not in at or name not in RULES:
            raise InvalidPlan(
                f"windows: rule[{field!r}] = {name!r}; accepted: a field of at= with one of {RULES}",
                what=f"rule[{field!r}]",
                given=name,
                accepted=[*RULES],
            )
        if name == "last":
            continue
        if at[field].unit == "rows":
            raise InvalidPlan(
                f"windows: rule[{field!r}] = {name!r}, and at={field!r} names rows, which have no rule",
                what=f"rule[{field!r}]",
                given=name,
                accepted="times in at=",
            )
        rules[field] = name
    return rules


def _is_list(value: object, most: int) -> bool:
    """Return whether a value is a list or tuple of at most so many."""
    is_text = isinstance(value, str)  # a str is a Sequence
    if is_text or not isinstance(value, Sequence):
        return False
    return len(value) <= most


def _are_names(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) and value for value in values)


def _styles(text: Any) -> tuple[str, ...]:
    is_valid = _is_list(text, MAX_STYLES) and _are_names(text)
    if is_valid:
        n_distinct = len(set(text))
        is_valid = n_distinct == len(text)
    if not is_valid:
        raise InvalidPlan(
            f"windows: text = {text!r:.200}; up to {MAX_STYLES} different styles of language are needed, such as "
            "('subtask', 'task')",
            what="text",
            given=text,
            accepted=f"up to {MAX_STYLES} different styles",
        )
    return tuple(text)


def _columns(columns: Any) -> tuple[str, ...]:
    is_valid = _is_list(columns, MAX_COLUMNS) and _are_names(columns)
    if not is_valid:
        raise InvalidPlan(
            f"windows: columns = {columns!r:.200}; up to {MAX_COLUMNS} names of columns are needed, such as ('robot',)",
            what="columns",
            given=columns,
            accepted=f"up to {MAX_COLUMNS} names of columns",
        )
    distinct = dict.fromkeys(columns)  # in order
    return tuple(distinct)


def _check_offsets(field: object, value: Any) -> Offsets:
    """Return a field's entry of `at`. Raises: InvalidPlan."""
    if not isinstance(field, str):
        raise InvalidPlan(
            f"windows: at names {field!r}; fields are texts", what="at", given=field, accepted="a text"
        )
    if isinstance(value, Offsets):
        return value
    where = f"at[{field!r}]"
    is_text = isinstance(value, str)  # a str is a Sequence
    if is_text or not isinstance(value, Sequence):
        raise InvalidPlan(
            f"windows: {where} = {value!r}; a list of times or loader.rows(...) is needed",
            what=where,
            given=value,
            accepted="a list of times or loader.rows(...)",
        )
    try:
        instants = [nanoseconds(time) for time in value]
        return _offsets("ns", instants, where)
    except InvalidPlan as error:
        raise error.with_message(f"windows: {where}: {error}", what=where) from None
