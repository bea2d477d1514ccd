"""One tick of discovery: every source of a dataset a bounded step further.

A source is listed from where the last tick left off, and again from the beginning when its end has come. So the next
pass finds what arrives late, or below. What is new waits until it fills a batch, or has waited long enough.

    list and compare -> put aside what waits -> write manifests -> move the cursor -> take notices away

Only the manifests count (`batch_manifests.Book`): wherever a tick is killed, and however many run at once, every object
comes into exactly one batch. Cost of a tick: the listing of at most `TickBudget.max_listed` keys (a request per 1,000),
and one HEAD per notice of a feed. Each source costs a GET and a PUT, and the dataset a `Book`. The `Book` costs a page
per 1,000 batches where the one of the tick before is kept. A pass over n keys takes n / max_listed ticks. Memory is
that of the keys of one tick and of all (uri, etag) in batches.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import islice

from loader.errors import PenstockError
from loader.storage import ObjectInfo, Store
from loader.storage.spec import redact
from loader.storage.store import SHOWN, list_place

from ..sources import Sieve, Source
from .batch_manifests import Book
from .feeds import Mail, open_box, read_mail
from .make_batches import make_batches, unseen
from .progress import (
    DEFAULT_BUDGET,
    Dataset,
    Progress,
    Step,
    TickBudget,
    Work,
    batched,
    paused,
    read_progress,
    write_progress,
)

_CHUNK = 32_768  # keys listed between two looks at the clock
_log = logging.getLogger(__name__)
Open = Callable[[Source], AbstractContextManager[Store]]
"""Function that opens the place of a source."""


def tick(
    dataset: Dataset,
    sources: Sequence[Source],
    place_of: Open,
    budget: TickBudget = DEFAULT_BUDGET,
    book: Book | None = None,
) -> list[Step]:
    """Go on at every source that is not paused, and return the results in the order of `sources`.

    book: of the dataset, made for this tick. A source that cannot be listed says so in its step, whatever was raised,
    and does not hold up the others. A feed that cannot be read does not hold up its source's listing.

    Raises: InvalidName; Corrupt for a manifest that cannot be read; StoreError of the root.
    """
    kept = {source.name: read_progress(dataset.store, dataset.name, source.name) for source in sources}
    book = book or Book(dataset.store, dataset.name)
    steps = {source.name: Step(source=source.name) for source in sources}
    left, ends = budget.max_listed, time.monotonic() + budget.max_s
    # Who has waited longest goes first, and each may use an equal share of what is left.
    for position, source in enumerate(sorted(sources, key=lambda one: kept[one.name].at_us)):
        step, progress, n_left = steps[source.name], kept[source.name], len(sources) - position
        share_s = max(0.0, ends - time.monotonic()) / n_left
        bound = replace(budget, max_listed=left // n_left, max_s=share_s)
        if not _is_paused(dataset, source, step):
            _go_on(dataset, source, place_of, progress, book, bound, step)
        left -= step.listed
        _tell(progress, step, dataset.now_us)
    return list(steps.values())


def _is_paused(dataset: Dataset, source: Source, step: Step) -> bool:
    if source.paused:
        step.note = "paused in the dataset's spec"
    elif (why := paused(dataset.store, dataset.name, source.name)) is not None:
        step.note = f"paused by {why.get('by') or 'somebody'}: {why.get('reason') or 'no reason given'}"
    return bool(step.note)


def _go_on(
    dataset: Dataset,
    source: Source,
    place_of: Open,
    progress: Progress,
    book: Book,
    budget: TickBudget,
    step: Step,
) -> None:
    try:
        with place_of(source) as place:
            work = Work(
                dataset=dataset,
                source=source,
                place=place,
                progress=progress,
                book=book,
                denied=dataset.denied(),
                budget=budget,
                step=step,
            )
            flows = _list_on(work) if source.listed else False
            with ExitStack() as stack:
                mail = _read_feed(work, stack)
                _make_batches(work, hold=flows)
                progress.at_us = dataset.now_us
                dealt_with = mail.settle(progress) if mail is not None else []
                write_progress(dataset.store, dataset.name, source.name, progress)
                if mail is not None:
                    mail.take_away(dealt_with, dataset.limits.max_wait_s)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this source's: the others go on
        _fail(step, error)


def _read_feed(work: Work, stack: ExitStack) -> Mail | None:
    """Return the letters of the source's feed; None without one, or when it cannot be read: the listing goes on."""
    if work.source.feed is None:
        return None
    try:
        return read_mail(work, stack.enter_context(open_box(work.source.feed)))
    except Exception as error:  # noqa: BLE001 - told as this source's failure, and its listing goes on
        _fail(work.step, error)
        return None


def _fail(step: Step, error: Exception) -> None:
    """Show the error on the tick's page. An error that nobody raises on purpose is a bug: log its traceback too."""
    step.note, step.failed = f"{type(error).__name__}: {redact(str(error))}", True
    if not isinstance(error, PenstockError):
        _log.error("source %s failed", step.source, exc_info=error)


def _list_on(work: Work) -> bool:
    """List on, let new objects wait, and return whether there is more to list now."""
    source, progress, budget = work.source, work.progress, work.budget
    why, ends, left = source.sieve(), time.monotonic() + budget.max_s, budget.max_listed
    refused = _Refused(work, why)
    infos = list_place(work.place, source.prefix, progress.cursor, refuse=refused, seek=True)
    while left:
        room = work.room()
        chunk = list(islice(infos, min(_CHUNK, left))) if room else []
        if room and not chunk:
            refused.count(None)
            progress.end_pass()
            return False
        n_done = _admit_chunk(work, chunk, why, room)
        refused.count(progress.cursor)
        left -= n_done
        if n_done < len(chunk) or not room or time.monotonic() >= ends:
            break
    return True


class _Refused:
    """Objects that a listing could not hand out: counted once a pass, though a tick may list some of them again."""

    def __init__(self, work: Work, why: Sieve) -> None:
        self._work, self._why = work, why
        self._waiting = list[tuple[str, str, str]]()

    def __call__(self, name: str, reason: str) -> None:
        """Receive one. The source may not have taken it anyway, for a reason of its own."""
        own = self._why(ObjectInfo(key=name, nbytes=self._work.source.min_bytes, etag=""))
        self._waiting.append((name, own or "not_listed", reason))

    def count(self, cursor: str | None) -> None:
        """Count those in front of the cursor; all where it is None."""
        waiting, self._waiting = self._waiting, []
        for name, kind, reason in waiting:
            if cursor is not None and name > cursor:
                self._waiting.append((name, kind, reason))
                continue
            self._work.progress.refused(kind)
            if kind == "not_listed" and len(self._work.step.unlisted) < SHOWN:
                self._work.step.unlisted.append(f"{name!r}: {reason}")


def _admit_chunk(work: Work, chunk: Sequence[ObjectInfo], why: Sieve, room: int) -> int:
    """Return the number of objects of the chunk that were dealt with."""
    reasons = [why(info) for info in chunk]
    taken = [position for position, reason in enumerate(reasons) if not reason]
    n_admitted = work.admit([chunk[position] for position in taken], room)
    n_done = taken[n_admitted] if n_admitted < len(taken) else len(chunk)
    for reason in filter(None, reasons[:n_done]):
        work.progress.refused(reason)
    if n_done:
        work.progress.cursor = chunk[n_done - 1].key
    work.progress.listed += n_done
    work.step.listed += n_done
    return n_done


def _make_batches(work: Work, *, hold: bool) -> None:
    """Write manifests over waiting objects: full ones, and one over the rest when it has waited long enough.

    hold: more is about to come, so the rest may wait for that unless nothing became full.
    """
    progress, limits, now_us = work.progress, work.dataset.limits, work.dataset.now_us
    waiting = [one for one in progress.waiting.values() if not work.denied.has(one.item)]
    # In between somebody else, or another source of the same place, may have put some into a batch.
    fresh = [
        waiting[position] for position in unseen([one.item.identity for one in waiting], batched(work.book))
    ]
    arrived = {one.item.identity: one for one in fresh}
    items = [one.item for one in fresh]
    made, items = make_batches(work.book, work.place.url, items, limits, rest=False)
    due_us = now_us - int(limits.max_wait_s * 1_000_000)
    if items and not (hold and made) and any(arrived[item.identity].arrived_us <= due_us for item in items):
        left = (
            limits
            if limits.max_batches is None
            else replace(limits, max_batches=limits.max_batches - len(made))
        )
        if left.max_batches != 0:
            more, items = make_batches(work.book, work.place.url, items, left, rest=True)
            made += more
    work.step.made += made
    if work.step.found:
        progress.taken.append((now_us, work.step.found))
    progress.waiting = {item.uri: arrived[item.identity] for item in items}
    if made or not items:
        progress.held = []  # they are read once more, and taken away when nothing of them waits


def _tell(progress: Progress, step: Step, now_us: int) -> None:
    """Fill the step with the state of the source after it."""
    step.waiting, step.cursor, step.n_passes = len(progress.waiting), progress.cursor, progress.n_passes
    oldest_us = min((one.arrived_us for one in progress.waiting.values()), default=now_us)
    step.oldest_s = max(0, now_us - oldest_us) / 1_000_000
    whole = Counter(progress.last_not_taken if not progress.cursor else {})
    step.not_taken = whole + Counter(progress.not_taken)
