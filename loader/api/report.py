"""Report training runs to the pipeline: the steps trained, and on which versions. Needs no Dagster.

    reports/training/<dataset>/runs/<run>/<32 hex>.json    a report; named after a hash of its content without its time
    reports/training/<dataset>/<n>.json                    n has 12 digits, from 1, without gaps: {"report": its key}

The second reveals new reports without a listing; a repeated report may have two.
"""

import hashlib
import json
import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from ..dataset.log.entries import DAMAGED
from ..dataset.names import check_dataset_name
from ..dataset.root import Root
from ..errors import AlreadyExists, Corrupt, FormatTooNew, InvalidName, InvalidRuntime, ObjectNotFound
from ..json_text import is_text, parse_json_object
from ..keywords import is_whole_number
from ..order.plan import Plan
from ..redaction import redact
from ..run.recipe.recipe import stored_view
from ..storage import Store
from ..storage.mirror import primary_store

FORMAT = 1
MAX_METRICS = 200
MAX_TEXT_CHARS = 2000
_DIGITS = 12
_PLAN = re.compile("p-[0-9a-f]{64}")
# Dates end there, and viewers show the time as one.
_YEAR_9999_US = 253_370_764_800_000_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The steps in which a run trained on one dataset."""

    dataset: str
    """Dataset name."""
    run: str
    """Run name."""
    plan: str
    """Hash of the run's plan."""
    first_step: int
    """First global step trained."""
    last_step: int
    """Last global step trained."""
    versions: tuple[Mapping[str, str], ...]
    """Versions of the dataset, each as {"source", "id", "name"}."""
    checkpoint: str = ""
    """Location of the checkpoint, or ""."""
    metrics: Mapping[str, float | str] = field(default_factory=dict)
    """Name -> number; "nan", "inf" or "-inf" if the number is not finite."""
    at_us: int = 0
    """Time of the report in UTC microseconds."""

    @property
    def identity(self) -> str:
        """32 hex digits of a SHA-256 over every field but the time."""
        # Without the time, so that a repeated report has the same name.
        body = {**asdict(self), "at_us": 0}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def key(self) -> str:
        return f"{_folder(self.dataset)}runs/{self.run}/{self.identity}.json"

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Report":
        """Return the report whose `to_json`, without its format, is `body`.

        Raises: TypeError or KeyError for other fields or values.
        """
        parsed = cls(**{**body, "versions": tuple(body["versions"])})
        if wrong := [name for name, is_valid in _CHECKS.items() if not is_valid(getattr(parsed, name))]:
            name = wrong[0]
            raise TypeError(f"{name} = {getattr(parsed, name)!r:.100} is not a value of a report")
        if parsed.first_step > parsed.last_step:
            raise TypeError(f"steps {parsed.first_step} to {parsed.last_step}")
        return parsed

    def to_json(self) -> bytes:
        body = {"format": FORMAT, **asdict(self)}
        return json.dumps(body, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()


def _is_valid_name(name: object) -> bool:
    try:
        return isinstance(name, str) and bool(check_dataset_name(name))
    except InvalidName:
        return False


def _is_count(value: object) -> bool:
    return is_whole_number(value, 0, 2**63 - 1)


def _are_versions(versions: object) -> bool:
    return isinstance(versions, tuple) and all(
        isinstance(one, dict) and one.keys() == {"source", "id", "name"} and all(map(is_text, one.values()))
        for one in versions
    )


def _are_metrics(metrics: object) -> bool:
    return (
        isinstance(metrics, dict)
        and len(metrics) <= MAX_METRICS
        and all(is_text(value) or type(value) in (float, int) for value in metrics.values())
    )


_CHECKS: Mapping[str, Callable[[object], bool]] = {
    "dataset": _is_valid_name,
    "run": _is_valid_name,
    "plan": lambda plan: isinstance(plan, str) and _PLAN.fullmatch(plan) is not None,
    "first_step": _is_count,
    "last_step": _is_count,
    "versions": _are_versions,
    "checkpoint": is_text,
    "metrics": _are_metrics,
    "at_us": lambda at_us: is_whole_number(at_us, 0, _YEAR_9999_US - 1),
}
"""Field -> check of its type and value. Viewers of reports rely on these checks."""


def report(
    root: Root,
    plan: Plan,
    *,
    run: str,
    steps: tuple[int, int],
    checkpoint: str = "",
    metrics: Mapping[str, float] | None = None,
    mlflow: Any = None,
    strict: bool = False,
) -> tuple[Report, ...]:
    """Report to the pipeline which steps of a plan were trained: one report per dataset of `root` in the plan.

    Call it on the first rank, after a checkpoint or at the end. A pipeline sensor shows the report as a materialization
    of [dataset, training_run]. The plan is saved under its hash.

    It never ends a training run: every error is logged, and failed reports are not in the result. Costs 3 small
    objects, and 2 log2(n) requests for the dataset's n-th report.

    Args:
        root: Root of the versions and the reports.
        plan: Plan of the training run, such as `batches.plan`.
        run: Name of the training run, valid as a dataset's name.
        steps: First and last step trained.
        checkpoint: Location of the checkpoint; "" if there is none. Passwords and signatures in a URL are removed.
        metrics: Name -> number, or anything that `float` accepts; at most 200.
        mlflow: Module `mlflow` inside a run, or anything with its `set_tags` and `log_metrics`.
        strict: True raises errors instead.

    Raises: with strict=True, InvalidRuntime or InvalidName for an invalid argument; StoreError; the errors of `mlflow`.
    """
    done: list[Report] = []
    try:
        reports = _reports(root, plan, run, steps, checkpoint, metrics or {})
        # Before the reports, which name it.
        plan.save(root)
        for each in reports:
            _append(root.store, each)
            done.append(each)
        if mlflow is not None:
            _log_to_mlflow(mlflow, reports)
    except Exception:  # no report may end a training run
        if strict:
            raise
        _log.exception("run %r could not report its steps %r", run, steps)
    return tuple(done)


def new_reports(root: Root, dataset: str, after: int = 0) -> Iterator[tuple[int, Report | Exception]]:
    """Yield (number, report) for a dataset's reports after number `after`, ascending. Two requests each.

    For an unreadable report, the error takes the report's place.
    """
    number = after + 1
    while True:
        try:
            pointer = root.store.get(_number_key(dataset, number))
        except ObjectNotFound:
            return
        try:
            yield number, _read(root.store, dataset, parse_json_object(pointer.data)["report"])
        except (FormatTooNew, ObjectNotFound, *DAMAGED) as error:  # Corrupt and InvalidStore are among these
            yield number, error
        number += 1


def _reports(
    root: Root,
    plan: Plan,
    run: str,
    steps: tuple[int, int],
    checkpoint: str,
    metrics: Mapping[str, float],
) -> tuple[Report, ...]:
    if not isinstance(plan, Plan):
        raise InvalidRuntime(
            f"plan = {type(plan).__name__}: the loader's plan is needed, such as batches.plan"
        )
    check_run(run)
    try:
        first, last = steps
    except (TypeError, ValueError):
        raise InvalidRuntime(
            f"steps = {steps!r}: the first and the last step trained are needed, (0, 999)"
        ) from None
    if not (_is_step(first) and _is_step(last) and first <= last):
        raise InvalidRuntime(f"steps = {steps!r}: whole numbers from 0 on, the first at most the last")
    numbers = _plain_metrics(metrics)
    state = root.state
    # (source, number of its growth) -> step from which it is read; other sources are read from step 0.
    growth_steps = {(growth.source, growth.number): growth.step for growth in plan.grown}
    # Dataset -> (source, number of the version, its id).
    of_dataset = dict[str, set[tuple[str, int, str]]]()
    for source in plan.sources.values():
        view = stored_view(source.view)
        # A source that grows after the last step was not trained on.
        begins = growth_steps.get((source.source, source.growth), 0)
        if view is not None and begins <= last and view.version.id in state.ids:
            version = view.version
            of_dataset.setdefault(version.dataset, set()).add((source.source, version.number, version.id))
    if not of_dataset:
        raise InvalidRuntime(
            f"the plan reads no version of {root.url}: report to the root that the training reads from",
            what="root",
            given=root.url,
        )
    # Cut last, so that no part of a secret remains.
    where = redact(str(checkpoint))[:MAX_TEXT_CHARS]
    return tuple(
        Report(
            dataset=dataset,
            run=run,
            plan=plan.hash,
            first_step=int(first),
            last_step=int(last),
            versions=tuple(
                {"source": s, "id": id, "name": f"{dataset}@{n}"} for s, n, id in sorted(versions)
            ),
            checkpoint=where,
            metrics=numbers,
            at_us=time.time_ns() // 1000,
        )
        for dataset, versions in sorted(of_dataset.items())
    )


def _is_step(value: object) -> bool:
    """Return whether a value is a whole number from 0 on, numpy's integers included."""
    return hasattr(value, "__index__") and not isinstance(value, bool) and value.__index__() >= 0


def check_run(run: str) -> str:
    """Return the name of a run. Raises: InvalidName."""
    try:
        return check_dataset_name(run)
    except (InvalidName, TypeError):
        raise InvalidName(
            f"run = {run!r}: 1 to 128 of A-Z a-z 0-9 . _ -, the first a letter or digit, not 'v-...'"
        ) from None


def _plain_metrics(metrics: Mapping[str, float]) -> dict[str, float | str]:
    """Return metrics as JSON can hold them. Raises: InvalidRuntime."""
    if not isinstance(metrics, Mapping) or len(metrics) > MAX_METRICS:
        raise InvalidRuntime(f"metrics: a mapping of at most {MAX_METRICS} names to numbers is needed")
    plain: dict[str, float | str] = {}
    for name, value in metrics.items():
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError) as error:  # torch: a tensor with several values
            raise InvalidRuntime(f"metrics[{name!r}] is not a number: {error}") from None
        text = str(name)[:MAX_TEXT_CHARS]
        plain[text] = number
        if not math.isfinite(number):  # JSON has no NaN and no infinity
            plain[text] = str(number)
    return plain


def _append(store: Store, appended: Report) -> None:
    """Store a report, and give it the next number."""
    with suppress(AlreadyExists):  # reported earlier; its number may be missing, so it gets another number
        store.put_if_absent(appended.key, appended.to_json())
    pointer = json.dumps({"report": appended.key}).encode()
    number = _newest_number(store, appended.dataset)
    # Reported before, with a number: a job may repeat its last report.
    if number and store.get(_number_key(appended.dataset, number)).data == pointer:
        return
    while True:
        number += 1
        try:
            store.put_if_absent(_number_key(appended.dataset, number), pointer)
        # Another run has the number.
        except AlreadyExists:
            continue
        return


def run_reports(root: Root, run: str) -> list[Report]:
    """Return all reports of a run, by dataset. Costs a listing per dataset of the root. Raises: Corrupt."""
    store = primary_store(root.store)
    return [
        _read(store, dataset, info.key)
        for dataset in sorted(root.state.datasets)
        for info in store.list(f"{_folder(dataset)}runs/{run}/")
    ]


def _newest_number(store: Store, dataset: str) -> int:
    """Return the highest number, or 0, by doubling and halving: numbers have no gaps."""

    def is_there(number: int) -> bool:
        try:
            store.head(_number_key(dataset, number))
        except ObjectNotFound:
            return False
        return True

    low = 0  # has a report, or is 0
    high = 1  # has none, once the doubling ends
    while is_there(high):
        low = high
        high = 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if is_there(middle):
            low = middle
        else:
            high = middle
    return low


def _read(store: Store, dataset: str, key: str) -> Report:
    if not isinstance(key, str) or not key.startswith(_folder(dataset)):
        raise Corrupt(f"{store.url}: {key!r} is not a report of {dataset}")
    data = store.get(key).data
    try:
        body = parse_json_object(data)
        is_newer = body.pop("format") > FORMAT
        if is_newer:
            stored_report = None
        else:
            stored_report = Report.from_json(body)
    except DAMAGED as error:
        raise Corrupt(
            f"{store.url}/{key} is not a report of a training ({error!r}): it was changed; restore or delete it"
        ) from error
    if stored_report is None:
        raise FormatTooNew(
            f"{store.url}/{key} has a newer format than {FORMAT}, which this penstock reads: upgrade it"
        )
    # The name is a hash of the content.
    if stored_report.key != key:
        raise Corrupt(
            f"{store.url}/{key} was changed: its content belongs under {stored_report.key}; restore or delete it"
        )
    return stored_report


def _log_to_mlflow(run: Any, reports: tuple[Report, ...]) -> None:
    tags = {
        "penstock.plan": reports[0].plan,
        "penstock.run": reports[0].run,
        "penstock.checkpoint": reports[0].checkpoint,
    }
    tags["penstock.steps"] = f"{reports[0].first_step}..{reports[0].last_step}"
    for sent in reports:
        named = {version["source"]: f"{version['name']} {version['id']}" for version in sent.versions}
        tags |= {f"penstock.version.{source}": text for source, text in named.items()}
    run.set_tags(tags)
    if reports[0].metrics:
        run.log_metrics({name: float(n) for name, n in reports[0].metrics.items()}, step=reports[0].last_step)


def _folder(dataset: str) -> str:
    return f"reports/training/{check_dataset_name(dataset)}/"


def _number_key(dataset: str, number: int) -> str:
    return f"{_folder(dataset)}{number:0{_DIGITS}d}.json"
