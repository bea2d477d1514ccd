"""Expectations on a table, evaluated by Great Expectations, whose import takes 5 to 12 s and 300 MB.

The table becomes Arrow-backed pandas: integers with nulls stay integers, NaN is not null. Types are checked here.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

from loader.errors import InvalidSpec, MissingDependency
from penstock.text import markdown_table

from .outcome import CheckResult

if TYPE_CHECKING:
    import polars as pl

Kind = Literal["column", "not_null", "between", "in_set", "unique", "matches", "row_count"]
Status = Literal["passed", "failed", "error"]
Scalar = bool | int | float | str

_N_SHOWN = 5  # unexpected values
_MAPS = ("not_null", "between", "in_set", "unique", "matches")
"""Kinds that check each row by itself: only these have a `max_share`, and pass if `where` selects no row."""
_NEEDS: Mapping[str, tuple[str, ...]] = {"in_set": ("values",), "matches": ("pattern",)}
"""Kind -> fields that it cannot do without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One rule for a table.

    - column: `column` exists, with polars type `type` ("String", "Int64", "Float64" ...) if set
    - not_null: no nulls; NaN is not null
    - between: low <= value <= high; null passes, NaN fails
    - in_set: the value is one of `values`; null passes
    - unique: no value occurs twice; null passes
    - matches: the regular expression `pattern` matches anywhere; null passes
    - row_count: low <= number of rows <= high

    Raises: InvalidSpec if the fields are inconsistent.
    """

    kind: Kind
    """One of the kinds above."""
    column: str = ""
    """Column; "" for row_count."""
    type: str = ""
    """Polars type of the column; "" for any."""
    low: float | None = None
    """Smallest allowed value or number; None: no limit."""
    high: float | None = None
    """Largest allowed value or number; None: no limit."""
    values: tuple[Scalar, ...] = ()
    """Values that in_set accepts."""
    pattern: str = ""
    """Regular expression for `matches`."""
    where: tuple[str, Scalar] | None = None
    """(column, value), such as ("kind", "audio"): check only these rows. Without one, every rule but row_count
    passes.
    """
    max_share: float = 0.0
    """Share of rows that may fail, 0 to 1."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InvalidSpec(
                f"{self}: kind={self.kind!r}; accepted: {', '.join(get_args(Kind))}",
                what="kind",
                where=self.column,
                given=self.kind,
                accepted=get_args(Kind),
            )
        if not all(limit is None or math.isfinite(limit) for limit in (self.low, self.high)):
            raise InvalidSpec(
                f"{self}: accepted as low and high: finite numbers, None for no limit",
                what="low and high",
                where=self.column,
                given=(self.low, self.high),
                accepted="finite numbers, None for no limit",
            )
        has_column = self.column != ""
        needs_column = self.kind != "row_count"
        if has_column != needs_column:
            raise InvalidSpec(
                f"{self}: row_count takes no column, every other kind takes one",
                what="column",
                where=self.column,
                given=self.column,
            )
        if self.kind in ("between", "row_count") and self.low is None and self.high is None:
            raise InvalidSpec(
                f"{self}: give low, high or both",
                what="low and high",
                where=self.column,
                given=(self.low, self.high),
                accepted="low, high or both",
            )
        if missing := [name for name in _NEEDS.get(self.kind, ()) if not getattr(self, name)]:
            raise InvalidSpec(f"{self}: give {', '.join(missing)}", what=missing[0], where=self.column)
        if not 0 <= self.max_share <= 1 or (self.max_share and self.kind not in _MAPS):
            raise InvalidSpec(
                f"{self}: max_share is 0 to 1, for {', '.join(_MAPS)} only",
                what="max_share",
                where=self.column,
                given=self.max_share,
                accepted="0 to 1",
            )

    @property
    def name(self) -> str:
        """Readable name: 'between(duration_s, 0.5, 30) where kind = audio'."""
        if self.kind in ("between", "row_count"):
            limits = [str(value) for value in (self.low, self.high)]
        else:
            limits = []
        words = [self.column, self.type, self.pattern, *map(str, self.values), *limits]
        suffix = ""
        if self.where:
            suffix = f" where {self.where[0]} = {self.where[1]}"
        return f"{self.kind}({', '.join(word for word in words if word)}){suffix}"

    def to_json(self) -> dict[str, Any]:
        """Return the expectation as JSON without floats, for a fingerprint."""
        return {name: repr(getattr(self, name)) for name in Expectation.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectationResult:
    """Outcome of one expectation."""

    expectation: Expectation
    """Expectation that was evaluated."""
    status: Status
    """"error" if not evaluated, which counts as failed."""
    observed: str
    """Observed values, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    n_rows: int
    """Rows in the table."""
    results: tuple[ExpectationResult, ...]
    """In the suite's order."""

    @property
    def passed(self) -> bool:
        return all(result.status == "passed" for result in self.results)

    @property
    def broken(self) -> bool:
        """True if an expectation could not be evaluated."""
        return any(result.status == "error" for result in self.results)

    @property
    def not_passed(self) -> tuple[Expectation, ...]:
        """Expectations that failed, or could not be evaluated."""
        return tuple(result.expectation for result in self.results if result.status != "passed")

    @property
    def markdown(self) -> str:
        """Markdown table of the results, failures first."""
        order = {"error": 0, "failed": 1, "passed": 2}
        rows = sorted(self.results, key=lambda result: order[result.status])
        return markdown_table(
            ("status", "expectation", "allowed share", "observed"),
            [(r.status, r.expectation.name, f"{r.expectation.max_share:g}", r.observed) for r in rows],
        )

    def as_check(self, name: str = "expectations") -> CheckResult:
        """Return the suite as one check; its value is the number of failures."""
        wrong = [result for result in self.results if result.status != "passed"]
        named = "; ".join(f"{r.expectation.name}: {r.status}, {r.observed}" for r in wrong[:3])
        more = ""
        if len(wrong) > 3:
            more = f"; and {len(wrong) - 3} more"
        return CheckResult(
            name=name,
            passed=not wrong,
            value=float(len(wrong)),
            limit=0.0,
            explanation=f"{len(self.results) - len(wrong)} of {len(self.results)} expectations passed over "
            f"{self.n_rows} rows{': ' if wrong else ''}{named}{more}",
            table_markdown=self.markdown,
        )


def run_expectations(
    table: "pl.DataFrame | pl.LazyFrame | Sequence[str]", suite: Sequence[Expectation]
) -> CheckReport:
    """Evaluate the suite, reading only the columns that it names.

    table: a frame, or paths of one table's Parquet files. Status "error": not evaluated. Raises:
    MissingDependency; what Great Expectations raises if the whole run fails.
    """
    import polars as pl

    if isinstance(table, pl.DataFrame | pl.LazyFrame):
        lazy = table.lazy()
    else:
        lazy = pl.concat([pl.scan_parquet(path) for path in table], how="diagonal_relaxed")
    types = lazy.collect_schema()
    named = {item.column for item in suite}
    for item in suite:
        if item.where is not None:
            column, _ = item.where
            named.add(column)
    names = sorted(named & set(types.names()))
    with_index = lazy.with_row_index("__row")  # so that the frame has its rows even without columns
    frame = with_index.select("__row", *names).collect()
    type_names = {name: str(dtype) for name, dtype in types.items()}
    results = dict(_wrong_types(suite, type_names))  # number in the suite -> result
    # A rule over no rows passes, whatever Great Expectations answers for an empty table.
    results |= _of_no_rows(suite, frame)
    remaining = {n: item for n, item in enumerate(suite) if n not in results}
    if remaining:
        results |= _validate(frame, remaining)
    in_order = tuple(results[n] for n in range(len(suite)))
    return CheckReport(n_rows=len(frame), results=in_order)


def _wrong_types(
    suite: Sequence[Expectation], types: Mapping[str, str]
) -> Iterator[tuple[int, ExpectationResult]]:
    """Yield (number in the suite, failed result) for columns of another type. types: column -> polars type."""
    for number, item in enumerate(suite):
        type_ = types.get(item.column)
        if item.kind == "column" and item.type and type_ not in (None, item.type):
            observed = f"{item.column} is {type_}"
            yield (
                number,
                ExpectationResult(
                    expectation=item,
                    status="failed",
                    observed=observed,
                ),
            )


def _of_no_rows(suite: Sequence[Expectation], frame: "pl.DataFrame") -> dict[int, ExpectationResult]:
    """Return number in the suite -> passed result, for rules whose `where` no row fulfils."""
    results: dict[int, ExpectationResult] = {}
    for number, item in enumerate(suite):
        if item.where is None or item.kind not in _MAPS:
            continue
        column, value = item.where
        if column not in frame.columns or (frame[column] == value).any():
            continue
        results[number] = ExpectationResult(
            expectation=item,
            status="passed",
            observed="there are no such rows",
        )
    return results


def _validate(frame: "pl.DataFrame", suite: Mapping[int, Expectation]) -> dict[int, ExpectationResult]:
    """Evaluate expectations by Great Expectations. suite: number in the caller's suite -> expectation."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # raised by modules that it imports
            gx: Any = import_module("great_expectations")
    except ImportError as error:
        raise MissingDependency(
            "a suite of expectations needs Great Expectations: pip install -e '.[pipeline]'"
        ) from error
    context = gx.get_context(mode="ephemeral")
    # It would otherwise report each run to its vendor, and wait for the network.
    context.enable_analytics(False)
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    source = context.data_sources.add_pandas("tables")
    asset = source.add_dataframe_asset("table")
    batch = asset.add_batch_definition_whole_dataframe("whole")
    translated = [_translate(number, item) for number, item in suite.items()]
    gx_suite = context.suites.add(gx.ExpectationSuite(name="suite", expectations=translated))
    definition = gx.ValidationDefinition(name="validation", data=batch, suite=gx_suite)
    validation = context.validation_definitions.add(definition)
    # Arrow-backed: plain pandas turns integers with nulls into floats, and nulls into NaN.
    dataframe = frame.to_pandas(use_pyarrow_extension_array=True)
    answer = validation.run(
        batch_parameters={"dataframe": dataframe},
        result_format={"result_format": "SUMMARY", "partial_unexpected_count": _N_SHOWN},
    )
    # An expectation without an answer counts as failed, not as passed.
    unanswered = {
        number: ExpectationResult(
            expectation=item,
            status="error",
            observed="no result came back",
        )
        for number, item in suite.items()
    }
    # Answers come in another order than the suite, so each carries its number.
    numbers = [int(result.expectation_config.meta["number"]) for result in answer.results]
    results = zip(numbers, answer.results, strict=True)
    return unanswered | {number: _result(suite[number], result) for number, result in results}


def _translate(number: int, item: Expectation) -> Any:
    """Return an expectation as an object of Great Expectations, which returns `number` with its answer."""
    gxe: Any = import_module("great_expectations.expectations")
    conditions: Any = import_module("great_expectations.expectations.row_conditions")
    options: dict[str, Any] = {"meta": {"number": number}}
    if item.where is not None:
        options["row_condition"] = conditions.Column(item.where[0]) == item.where[1]
    if item.kind == "row_count":
        return gxe.ExpectTableRowCountToBeBetween(min_value=item.low, max_value=item.high, **options)
    options["column"] = item.column
    if item.kind == "column":
        # Without `row_condition`: the table has the column or lacks it, whichever rows `where` selects.
        return gxe.ExpectColumnToExist(column=item.column, meta=options["meta"])
    # 1 - 0.58 is 0.42000000000000004: unrounded, a share of exactly 58 % would fail.
    options["mostly"] = round(1 - item.max_share, 12)
    if item.kind == "not_null":
        return gxe.ExpectColumnValuesToNotBeNull(**options)
    if item.kind == "between":
        return gxe.ExpectColumnValuesToBeBetween(min_value=item.low, max_value=item.high, **options)
    if item.kind == "in_set":
        return gxe.ExpectColumnValuesToBeInSet(value_set=list(item.values), **options)
    if item.kind == "unique":
        return gxe.ExpectColumnValuesToBeUnique(**options)
    return gxe.ExpectColumnValuesToMatchRegex(regex=item.pattern, **options)


def _result(item: Expectation, answer: Any) -> ExpectationResult:
    """Success=False may hide an exception inside a metric."""
    if raised := _first_error(answer.exception_info or {}):
        return ExpectationResult(
            expectation=item,
            status="error",
            observed=raised[:300],
        )
    status: Status = "failed"
    if answer.success:
        status = "passed"
    facts = answer.result
    if item.kind == "column":
        observed = "there is no such column"
        if answer.success:
            observed = "it exists"
    elif item.kind == "row_count":
        observed = f"{facts['observed_value']} rows"
    else:
        values = facts.get("partial_unexpected_list", [])
        examples = ", ".join(repr(value) for value in values[:_N_SHOWN])
        observed = f"{facts['unexpected_count']} of {facts['element_count']} rows do not"
        if examples and item.kind != "not_null":  # there, each is null
            observed += f", e.g. {examples}"
    return ExpectationResult(expectation=item, status=status, observed=observed)


def _first_error(info: Mapping[str, Any]) -> str:
    """Return the first error's message in `exception_info` of Great Expectations; "" without an error."""
    if "raised_exception" in info:
        # The information is one record, or a record per metric.
        records = [info]
    else:
        records = list(info.values())
    for record in records:
        if record.get("raised_exception"):
            return str(record.get("exception_message"))
    return ""
