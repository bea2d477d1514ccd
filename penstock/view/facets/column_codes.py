"""Codes of a column: one byte a row (two beyond 256 codes) that names the row's value or bin in a facet.

A facet counts codes instead of values. Columns of a million values take 1 MB each, and counting takes milliseconds,
where polars needs up to 0.8 s for eight columns.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .facet_terms import bin_term, quote_column, value_term
from .number_bins import bin_edges

if TYPE_CHECKING:
    import polars

CATEGORY = "category"
NUMBER = "number"
BOOL = "bool"
TIME = "time"
IDENTIFIER = "identifier"
OTHER = "other"
MOST_VALUES = 300
"""Most values that a facet lists; the others of a column are searched."""
MOST_VALUE_CHARACTERS = 300
"""A longer text is not listed: its term would not fit in an address."""
CODES_AT_ONCE = 2**18
"""Codes that are counted at once."""
LEAST_IDENTIFIERS = 8
"""Distinct texts from which on a column without repeated values has identifiers, not categories."""
_HASH_NAME = re.compile(r"(^|_)(phash|dup_of|hash|sha1|sha256|md5|crc32c|etag|digest|uuid)$")
_NUMBER_TYPE = re.compile("double|float|u?int[0-9]+")

Codes = np.ndarray[Any, np.dtype[np.uint8 | np.uint16]]
Int64s = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class CodedValue:
    value: str | bool | float | None
    """None for samples without a value; NaN and the infinities of numbers."""
    where: str
    """SQL term that finds it."""


@dataclass(frozen=True, slots=True)
class CodedBin:
    low: float | str
    """First number or time."""
    high: float | str
    """End: in the last bin only, `high` belongs to it."""
    where: str
    """SQL term that finds it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodedColumn:
    """A column of live samples. Codes number the values, then the bins, then all other values."""

    column: str
    type: str
    """polars type."""
    kind: str
    """Decides what a facet shows: category, number, bool, time, identifier or other."""
    scale: str
    """Bins' scale, "linear" or "log"; "" without bins."""
    values: tuple[CodedValue, ...]
    bins: tuple[CodedBin, ...]
    codes: Codes
    """[live samples]."""
    null_code: int
    """Code of samples without a value; -1 if there are none."""
    n_values: int
    """Distinct values, without null."""
    low: float | str | None
    """Smallest finite number or first time."""
    high: float | str | None
    """Largest finite number or last time."""
    mean: float | None
    """Mean of finite numbers."""
    all: Int64s
    """[codes]: live samples of each code."""

    @property
    def n_codes(self) -> int:
        return len(self.all)

    @property
    def nbytes(self) -> int:
        texts = sum(map(len, self.terms))
        # Twice: Python keeps a term, and the value inside it, as texts of their own.
        return self.codes.nbytes + self.all.nbytes + 2 * texts

    @property
    def terms(self) -> list[str]:
        """Return the SQL term of each code that the facet lists."""
        return [one.where for one in self.values] + [one.where for one in self.bins]

    def code_of(self, term: str) -> int | None:
        """Return the code that a term selects; None if no facet wrote it."""
        terms = self.terms
        if term in terms:
            return terms.index(term)
        return None

    def counts(self, members: Bools | None) -> Int64s:
        """Return int64 [codes]: members of each code. members: bool [live samples], or None for all."""
        if members is None:
            return self.all
        counts = np.zeros(self.n_codes, np.int64)
        # np.bincount makes eight bytes of each code: of 4e6 at once, 32 MB that the heap keeps for each thread.
        for first in range(0, len(self.codes), CODES_AT_ONCE):
            rows = slice(first, first + CODES_AT_ONCE)
            codes = self.codes[rows][members[rows]]
            counts += np.bincount(codes, minlength=self.n_codes)
        return counts


@dataclass(slots=True)
class _Coding:
    """The codes of a column before null has one."""

    kind: str
    values: list[Any]
    codes: Int64s
    """[live samples]: index into values, then bins; one more for all others."""
    n_values: int
    bins: tuple[CodedBin, ...] = ()
    scale: str = ""
    low: float | str | None = None
    high: float | str | None = None
    mean: float | None = None


def code_column(
    name: str,
    series: "polars.Series",
    *,
    has_categories: bool = False,
) -> CodedColumn:
    """Return the codes of a column of live samples. has_categories: True for whole numbers that name kinds."""
    if has_categories:
        coding = _whole_categories(series)
    else:
        coding = _coding(name, series)
    values = coding.values
    codes = coding.codes
    null_code = -1
    if series.null_count():
        null_code = len(values)
        # Bins and others move up by one, because values come first.
        codes[codes >= null_code] += 1
        codes[series.is_null().to_numpy()] = null_code
        values = [*values, None]
    n_listed = len(values) + len(coding.bins)
    # One more for the code of all other values, which may have no sample.
    every = np.bincount(codes, minlength=n_listed + 1)
    small: Any = np.uint8
    if len(every) > 256:
        small = np.uint16
    listed = tuple(CodedValue(value, value_term(name, value)) for value in values)
    if coding.kind == IDENTIFIER:
        # An identifier lists no values, not even null: its code stays for the count.
        listed = ()
    return CodedColumn(
        column=name,
        type=str(series.dtype),
        kind=coding.kind,
        scale=coding.scale,
        values=listed,
        bins=coding.bins,
        codes=codes.astype(small),
        null_code=null_code,
        n_values=coding.n_values,
        low=coding.low,
        high=coding.high,
        mean=coding.mean,
        all=every,
    )


def _coding(name: str, series: "polars.Series") -> _Coding:
    import polars as pl

    dtype = series.dtype
    if dtype == pl.Boolean:
        return _bools(series)
    if dtype in (pl.String, pl.Categorical, pl.Enum):
        return _texts(name, series.cast(pl.String))
    if dtype.is_integer() or dtype in (pl.Float32, pl.Float64):
        if _HASH_NAME.search(name):
            return _presence_coding(IDENTIFIER, series)
        return _numbers(name, series)
    if dtype == pl.Date or isinstance(dtype, pl.Datetime):
        return _times(name, series)
    return _presence_coding(OTHER, series)


def kind_of_type(name: str, type_name: str) -> str:
    """Return a column's kind by its name and Arrow type; texts that are all distinct are not categories."""
    if type_name == "bool":
        return BOOL
    if type_name == "string":
        if _HASH_NAME.search(name):
            return IDENTIFIER
        return CATEGORY
    if _NUMBER_TYPE.fullmatch(type_name):
        if _HASH_NAME.search(name):
            return IDENTIFIER
        return NUMBER
    if type_name.startswith(("timestamp", "date")):
        return TIME
    return OTHER


def _presence_coding(kind: str, series: "polars.Series") -> _Coding:
    """Return a coding that separates samples with a value from those without."""
    codes = np.zeros(len(series), np.int64)
    n_values = 0
    if kind == IDENTIFIER:
        n_values = series.drop_nulls().n_unique()
    return _Coding(
        kind,
        [],
        codes,
        n_values,
    )


def _bools(series: "polars.Series") -> _Coding:
    # True has code 0, since it is listed first. Null gets its own code later.
    codes = 1 - series.fill_null(False).cast(int).to_numpy()
    present = series.drop_nulls()
    return _Coding(
        BOOL,
        [True, False],
        codes.astype(np.int64),
        present.n_unique(),
    )


def _texts(name: str, series: "polars.Series") -> _Coding:
    import polars as pl

    present = series.drop_nulls()
    counts = present.alias("value").value_counts(name="n")
    n_values = counts.height
    if is_identifier(
        name,
        n_values,
        len(present),
    ):
        return _presence_coding(IDENTIFIER, series)
    # After the test for identifiers: long texts are values too.
    short = counts.filter(pl.col("value").str.len_chars() <= MOST_VALUE_CHARACTERS)
    return _categories(series, short, n_values)


def _whole_categories(series: "polars.Series") -> _Coding:
    counts = series.drop_nulls().alias("value").value_counts(name="n")
    return _categories(series, counts, counts.height)


def _categories(
    series: "polars.Series",
    counts: "polars.DataFrame",
    n_values: int,
) -> _Coding:
    """Return the coding of the most frequent values. counts: value, n."""
    import polars as pl

    # By value among equally frequent ones, so that a page lists them in one order each time.
    top = counts.sort(["n", "value"], descending=[True, False]).head(MOST_VALUES)
    values = top["value"].to_list()
    if not values:
        return _Coding(
            CATEGORY,
            [],
            np.zeros(len(series), np.int64),
            n_values,
        )
    # Null and values that are not listed get the code after the last.
    codes = series.replace_strict(
        values,
        list(range(len(values))),
        default=len(values),
        return_dtype=pl.Int64,
    )
    return _Coding(
        CATEGORY,
        values,
        # A copy, because polars' memory is read-only and null moves the codes.
        codes.to_numpy().copy(),
        n_values,
    )


def is_identifier(
    name: str,
    n_values: int,
    n_present: int,
) -> bool:
    """Return whether texts name samples instead of kinds of samples."""
    if _HASH_NAME.search(name):
        return True
    if n_values > MOST_VALUES:
        return n_values > n_present / 2
    return n_values == n_present >= LEAST_IDENTIFIERS


def _numbers(name: str, series: "polars.Series") -> _Coding:
    present = series.drop_nulls()
    numbers = present.to_numpy()
    is_finite = np.isfinite(numbers)
    finite = numbers[is_finite]
    # A facet of numbers without NaN has no line for it.
    special = [value for value, n in _not_finite(numbers, is_finite).items() if n]
    edges, scale = bin_edges(finite)
    bins = _bins(
        quote_column(name),
        edges.tolist(),
        edges.tolist(),
    )
    # Values come before bins.
    codes = _bin_codes(finite, edges) + len(special)
    number_codes = np.empty(len(numbers), np.int64)
    number_codes[is_finite] = codes
    for code, value in enumerate(special):
        is_value = numbers == value
        # NaN, which equals nothing.
        if value != value:
            is_value = np.isnan(numbers)
        number_codes[is_value] = code
    codes = _at_present(series, number_codes)
    coding = _Coding(
        NUMBER,
        special,
        codes,
        present.n_unique(),
        bins,
        scale,
    )
    if len(finite):
        coding.low = finite.min().item()
        coding.high = finite.max().item()
        with np.errstate(over="ignore", invalid="ignore"):  # the sum of large numbers may be infinite or NaN
            mean = float(finite.mean(dtype=np.float64))
        if np.isfinite(mean):
            coding.mean = mean
    return coding


def _not_finite(numbers: np.ndarray[Any, Any], is_finite: Bools) -> Mapping[float, int]:
    others = numbers[~is_finite]
    return {
        np.nan: int(np.isnan(others).sum()),
        np.inf: int((others == np.inf).sum()),
        -np.inf: int((others == -np.inf).sum()),
    }


def _times(name: str, series: "polars.Series") -> _Coding:
    import polars as pl

    present = series.drop_nulls()
    units = present.to_physical().to_numpy()  # [present]: days, or units of time since 1970
    edges, scale = bin_edges(units)
    shown = _time_texts(pl.Series(edges, dtype=present.to_physical().dtype), series.dtype)
    # A time with a zone compares with no literal of polars' SQL, its number does.
    bins = _bins(
        f"CAST({quote_column(name)} AS BIGINT)",
        edges.tolist(),
        shown,
    )
    codes = _at_present(series, _bin_codes(units, edges))
    coding = _Coding(
        TIME,
        [],
        codes,
        present.n_unique(),
        bins,
        scale,
    )
    if shown:
        coding.low = shown[0]
        coding.high = shown[-1]
    return coding


def _time_texts(units: "polars.Series", dtype: "polars.DataType") -> list[str]:
    import polars as pl

    try:
        return [value.isoformat() for value in units.cast(dtype).to_list()]
    except (pl.exceptions.PolarsError, ValueError, OverflowError):  # Python's years end at 9999
        return [str(unit) for unit in units.to_list()]


def _bins(
    operand: str,
    edges: list[Any],
    shown: list[Any],
) -> tuple[CodedBin, ...]:
    """Return the bins between neighbouring edges. shown: the edges as a page shows them."""
    last = len(edges) - 2
    return tuple(
        CodedBin(
            shown[i],
            shown[i + 1],
            bin_term(
                operand,
                edges[i],
                edges[i + 1],
                is_last=i == last,
            ),
        )
        for i in range(last + 1)
    )


def _bin_codes(numbers: np.ndarray[Any, Any], edges: np.ndarray[Any, Any]) -> Int64s:
    """Return int64 [numbers]: each one's bin. The last bin contains its upper end."""
    return np.searchsorted(
        edges[1:-1],
        numbers,
        side="right",
    )


def _at_present(series: "polars.Series", codes: Int64s) -> Int64s:
    """Return int64 [live samples] with these codes where there is a value, and 0 elsewhere."""
    if not series.null_count():
        return codes
    out = np.zeros(len(series), np.int64)
    out[series.is_not_null().to_numpy()] = codes
    return out
