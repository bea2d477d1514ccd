"""SQL terms that facets write: each finds exactly the samples of one value or bin."""

import math
import re
from typing import Any

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_KEYWORDS = frozenset(
    {
        "AND",
        "CASE",
        "CLUSTER",
        "END",
        "FROM",
        "GROUP",
        "LIMIT",
        "NOT",
        "OR",
        "ORDER",
        "SELECT",
        "WHERE",
    }
)
"""Names of columns that SQL takes for something else."""
NAN = "CAST('nan' AS DOUBLE)"
INFINITY = "CAST('inf' AS DOUBLE)"


def quote_column(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def column_order(column: str) -> str:
    """Return a column as an order (`sort=`) names it."""
    is_plain = _PLAIN_NAME.fullmatch(column)
    if not is_plain:
        return quote_column(column)
    word = column.upper()
    if word in _KEYWORDS:
        return quote_column(column)
    return column


def value_term(column: str, value: Any) -> str:
    """Return the term for one value: a text, bool, number, or None for samples without a value."""
    if value is None:
        return f"{quote_column(column)} IS NULL"
    return f"{quote_column(column)} = {literal(value)}"


def literal(value: Any) -> str:
    """Return a text, bool or number as an SQL literal."""
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bool):
        # A bool beside a text would compare as 'true' and find nothing.
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return NAN
    if math.isinf(value):
        if value > 0:
            return INFINITY
        return "CAST('-inf' AS DOUBLE)"
    return repr(value)


def bin_term(operand: str, low: Any, high: Any, *, is_last: bool) -> str:
    """Return the term for `low` up to, but only in the last bin including, `high`. operand: SQL of the column.

    polars sorts NaN above every number, so that each bin needs both ends.
    """
    if low == high:
        return f"{operand} = {literal(low)}"
    below = "<="
    if not is_last:
        below = "<"
    return f"{operand} >= {literal(low)} AND {operand} {below} {literal(high)}"


def range_term(column: str, low: str, high: str) -> str:
    """Return the term for a person's range, ends included. The filter's checks refuse anything but one column."""
    name = quote_column(column)
    return f"{name} >= {low} AND {name} <= {high}"
