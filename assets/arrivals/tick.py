"""One tick of discovery: advance every source of a dataset by a bounded step.

    list and compare -> queue new objects -> write manifests -> save the cursor -> acknowledge notices

Costs at most `TickBudget.max_listed` keys (a request per 1,000), a HEAD per notice, a GET and a PUT per source, and a
`Book`.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from itertools import islice

from loader.errors import PenstockError
from loader.redaction import redact
from loader.storage import ObjectInfo, Store
from loader.storage.store import SHOWN, list_place

from ..sources import BatchLimits, Sieve, Source
from .batch_manifests import Book
from .feeds import ReceivedMessages, open_message_source, receive_messages
from .make_batches import make_batches, unseen
from .progress import (
    DEFAULT_BUDGET,
    Progress,
    SourceTick,
    TickBudget,
    TickDataset,
    TickResult,
    Waiting,
    batched_objects,
    read_progress,
    source_pause,
    write_progress,
)

_CHUNK = 32_768  # keys listed between two checks of the clock
_log = logging.getLogger(__name__)
Open = Callable[[Source], AbstractContextManager[Store]]
"""Function that opens a source's store."""


def tick(
    dataset: TickDataset,
    sources: Sequence[Source],
    place_of: Open,
    budget: TickBudget = DEFAULT_BUDGET,
    book: Book | None = None,
) -> list[TickResult]:
    """Advance every source that is not paused; return the results in the order of `sources`.

    book: the dataset's manifests, read for this tick. A failed source has its error in its result; a failed feed does
    not stop the listing. Raises: InvalidName; Corrupt; StoreError of the root.
    """
    progresses = {source.name: read_progress(dataset.store, dataset.name, source.name) for source in sources}
    for progress in progresses.values():
        progress.correct_times(dataset.now_us)
    book = book or Book(dataset.store, dataset.name)
    steps = {source.name: TickResult(source=source.name) for source in sources}
    n_keys = budget.max_listed
    ends = time.monotonic() + budget.max_s
    # The source that has waited longest goes first; each gets an equal share of what is left.
    for position, source in enumerate(sorted(sources, key=lambda each: progresses[each.name].at_us)):
        step = steps[source.name]
        progress = progresses[source.name]
        n_left = len(sources) - position
        share_s = max(0.0, ends - time.monotonic()) / n_left
        bound = replace(budget, max_listed=n_keys // n_left, max_s=share_s)
        if not _is_paused(dataset, source, step):
            _advance(dataset, source, place_of, progress, book, bound, step)
        n_keys -= step.listed
        _summarize(progress, step, dataset.now_us)
    return list(steps.values())


def _is_paused(dataset: TickDataset, source: Source, step: TickResult) -> bool:
    """Return whether a source is paused, and note in the result by whom."""
    if source.paused:
        step.note = "paused in the dataset's spec"
    elif (pause := source_pause(dataset.store, dataset.name, source.name)) is not None:
        step.note = f"paused by {pause.get('by') or 'unknown'}: {pause.get('reason') or 'no reason'}"
    return bool(step.note)


def _advance(
    dataset: TickDataset,
    source: Source,
    place_of: Open,
    progress: Progress,
    book: Book,
    budget: TickBudget,
    step: TickResult,
) -> None:
    try:
        with place_of(source) as place:
            work = SourceTick(
                dataset=dataset,
                source=source,
                place=place,
                progress=progress,
                book=book,
                denied=dataset.denied(),
                budget=budget,
                step=step,
            )
            listing_goes_on = False
            if source.listed:
                listing_goes_on = _continue_listing(work)
            with ExitStack() as stack:
                received = _read_feed(work, stack)
                _make_batches(work, more_follow=listing_goes_on)
                progress.at_us = dataset.now_us
                finished = []
                if received is not None:
                    finished = received.settle(progress, dataset.now_us)
                # Before the messages are deleted: a tick that is killed in between receives them again.
                write_progress(dataset.store, dataset.name, source.name, progress)
                if received is not None:
                    received.acknowledge(finished, dataset.limits.max_wait_s)
    except Exception as error:  # noqa: BLE001 - any failure of this source leaves the others running
        _fail(step, error)


def _read_feed(work: SourceTick, stack: ExitStack) -> ReceivedMessages | None:
    if work.source.feed is None:
        return None
    try:
        return receive_messages(work, stack.enter_context(open_message_source(work.source.feed)))
    except Exception as error:  # noqa: BLE001 - recorded in the step; the listing goes on
        _fail(work.step, error)
        return None


def _fail(step: TickResult, error: Exception) -> None:
    step.note = f"{type(error).__name__}: {redact(str(error))}"
    step.failed = True
    if not isinstance(error, PenstockError):
        _log.error("source %s failed", step.source, exc_info=error)


def _continue_listing(work: SourceTick) -> bool:
    """Admit the next objects of a listing, within the budget; return whether objects are left for the next tick."""
    source = work.source
    progress = work.progress
    budget = work.budget
    sieve = source.sieve()
    ends = time.monotonic() + budget.max_s
    n_left = budget.max_listed
    refused = _RefusedNames(work, sieve)
    infos = list_place(work.place, source.prefix, progress.cursor, refuse=refused, seek=True)
    while n_left:
        room = work.room()
        chunk = []
        if room:
            chunk = list(islice(infos, min(_CHUNK, n_left)))
        if room and not chunk:  # the listing has ended
            refused.count(None)
            progress.end_pass()
            return False
        n_done = _admit_chunk(work, chunk, sieve, room)
        refused.count(progress.cursor)
        n_left -= n_done
        if n_done < len(chunk) or not room or time.monotonic() >= ends:
            break
    return True


class _RefusedNames:
    """Objects that a listing refused, each counted once per pass.

    A listing reads ahead, so a refusal waits until the cursor has passed its name: the next tick lists the rest again.
    """

    def __init__(self, work: SourceTick, sieve: Sieve) -> None:
        self._work = work
        self._sieve = sieve
        self._waiting = list[tuple[str, str, str]]()

    def __call__(self, name: str, reason: str) -> None:
        # Skipped by its name anyway, such as a hidden file: the sieve's reason counts. Its size is unknown, so one that
        # the sieve accepts.
        info = ObjectInfo(
            key=name,
            nbytes=self._work.source.min_bytes,
            etag="",
        )
        skipped = self._sieve(info)
        self._waiting.append((name, skipped or "not_listed", reason))

    def count(self, cursor: str | None) -> None:
        """Count the refusals up to the cursor; None at the end of a pass counts all."""
        waiting = self._waiting
        self._waiting = []
        for name, kind, reason in waiting:
            if cursor is not None and name > cursor:
                self._waiting.append((name, kind, reason))
                continue
            self._work.progress.refused(kind)
            if kind == "not_listed" and len(self._work.step.unlisted) < SHOWN:
                self._work.step.unlisted.append(f"{name!r}: {reason}")


def _admit_chunk(
    work: SourceTick,
    chunk: Sequence[ObjectInfo],
    sieve: Sieve,
    room: int,
) -> int:
    """Admit a chunk's objects in order while there is room; return how many of the chunk are done.

    Objects that the sieve skips take no room. The next tick goes on with the first object that is not done.
    """
    reasons = [sieve(info) for info in chunk]
    positions = [position for position, reason in enumerate(reasons) if not reason]
    n_admitted = work.admit([chunk[position] for position in positions], room)
    if n_admitted < len(positions):  # the first selected object without room: all before it are done
        n_done = positions[n_admitted]
    else:
        n_done = len(chunk)
    for reason in filter(None, reasons[:n_done]):
        work.progress.refused(reason)
    if n_done:
        work.progress.cursor = chunk[n_done - 1].key
    work.progress.listed += n_done
    work.step.listed += n_done
    return n_done


def _make_batches(work: SourceTick, *, more_follow: bool) -> None:
    # more_follow: further objects come next, so objects that fill no batch wait, unless no batch was full.
    progress = work.progress
    limits = work.dataset.limits
    now_us = work.dataset.now_us
    waiting = [one for one in progress.waiting.values() if not work.denied.has(one.item)]
    # Another process, or another source in the same store, may have batched some meanwhile.
    fresh = [
        waiting[position]
        for position in unseen([one.item.identity for one in waiting], batched_objects(work.book))
    ]
    arrived = {one.item.identity: one for one in fresh}
    fresh_items = [one.item for one in fresh]
    batches, unbatched = make_batches(work.book, work.place.url, fresh_items, limits, rest=False)
    remainder = [arrived[item.identity] for item in unbatched]
    if not (more_follow and batches) and _is_due(progress, remainder, limits, now_us):
        remaining = limits
        if limits.max_batches is not None:
            remaining = replace(limits, max_batches=limits.max_batches - len(batches))
        if remaining.max_batches != 0:
            more, unbatched = make_batches(work.book, work.place.url, unbatched, remaining, rest=True)
            batches += more
            if not unbatched:
                progress.rest_us = now_us
    work.step.batches += batches
    if work.step.n_new:
        progress.admitted.append((now_us, work.step.n_new))
    progress.waiting = {item.uri: arrived[item.identity] for item in unbatched}
    if batches or not unbatched:
        # The next tick receives these messages again, and acknowledges each whose objects are all in batches.
        progress.held = []


def _is_due(
    progress: Progress,
    waiting: Sequence[Waiting],
    limits: BatchLimits,
    now_us: int,
) -> bool:
    """Return whether a batch is made of objects that do not fill one: the oldest has waited for `max_wait_s`."""
    due_us = now_us - int(limits.max_wait_s * 1_000_000)
    if not any(one.arrived_us <= due_us for one in waiting):
        return False
    # At most one such batch in `max_wait_s`: if a tool copies files with their dates, new objects seem to have waited,
    # and each tick would make a small batch.
    return progress.rest_us <= due_us or not progress.rest_us


def _summarize(progress: Progress, step: TickResult, now_us: int) -> None:
    """Put where the source stands into the result."""
    step.waiting = len(progress.waiting)
    step.cursor = progress.cursor
    step.n_passes = progress.n_passes
    oldest_us = min((one.arrived_us for one in progress.waiting.values()), default=now_us)
    step.oldest_s = max(0, now_us - oldest_us) / 1_000_000
    last_pass = {}
    if not progress.cursor:  # between passes: only notices have counted since
        last_pass = progress.last_not_taken
    step.not_taken = Counter(last_pass) + Counter(progress.not_taken)
