"""A rank's ledger: every substitution of a run, kept under the root, written by its own thread.

    ledgers/<plan hash>/<rank>-of-<world size>/<step, 19 digits>-<slot, 10 digits>-<16 hex>.jsonl

There is one object per slot, created once, with a line of JSON per attempt.
"""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor  # noqa: TID251 - the exit waits for its queue
from itertools import groupby

from ..dataset.log.entries import DAMAGED
from ..dataset.log.marker import Marker
from ..dataset.root import Root
from ..dataset.versions.version import View
from ..errors import AlreadyExists, Corrupt, FormatTooNew, InvalidRuntime, StoreError, TooManyCorrupt
from ..json_text import parse_json_object
from ..order.plan import Plan
from ..storage import Store
from ..storage.mirror import primary_store
from .batch.substitution import LEDGER_FORMAT, Substitution
from .recipe.world import World

ALLOWANCE = 8
"""Substituted slots that every budget above 0 allows in addition, for short runs (docs/order.md)."""


class Budget:
    """Compares delivered and substituted samples with the allowed share. Not thread-safe."""

    def __init__(self, share: object) -> None:
        """Check the share of samples, 0 to 1. Raises: InvalidRuntime."""
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InvalidRuntime(
                f"corrupt_budget = {share!r}; a share of the samples from 0 to 1 is needed",
                what="corrupt_budget",
                given=share,
                accepted="a share from 0 to 1",
            )
        self.share = float(share)
        self._samples = self._substituted = 0

    def spend(self, samples: int, substitutions: Sequence[Substitution], ledger: str) -> None:
        """Add a batch of `samples`. ledger: location of the entries, for the message.

        Raises: TooManyCorrupt if the budget is exceeded. That batch is not added, so the next call raises again.
        """
        samples += self._samples
        substituted = self._substituted + len({entry.slot for entry in substitutions})
        allowed = self.share * samples + (ALLOWANCE if self.share else 0)
        if substitutions and substituted > allowed:
            last = substitutions[-1]
            raise TooManyCorrupt(
                f"step {last.step}: {substituted} of this rank's {samples} samples were corrupt and substituted, "
                f"corrupt_budget = {self.share:g} allows {int(allowed)}. They are listed in {ledger} "
                f"(loader.read_ledger); the last is {last.address.describe()}: {last.error}. Restore the shards from a "
                "mirror, put the samples into the plan's quarantine, or raise corrupt_budget",
                what="corrupt_budget",
                where=f"step {last.step}",
                given=substituted,
                accepted=int(allowed),
            )
        self._samples = samples
        self._substituted = substituted


logger = logging.getLogger(__name__)


# Not a NamedTuple, whose code the first batch would have to compile.
class _SlotWrite:
    """A write of the attempts at one slot."""

    def __init__(self, attempts: list[Substitution], future: Future[None], *, is_retry: bool) -> None:
        """future: ends when they are stored. is_retry: True after a write whose error was raised."""
        self.attempts = attempts
        self.future = future
        self.is_retry = is_retry


class Ledger:
    """Stores substitutions in the background.

    If one could not be stored, the next call raises its error, and the call after that stores it again.
    """

    def __init__(self, plan: Plan, world: World, stores: Mapping[str, Store]) -> None:
        self._stores = stores
        self._prefix = f"{_folder(plan.hash)}{world.rank}-of-{world.world_size}/"
        self._writer: ThreadPoolExecutor | None = None
        self._pending: list[_SlotWrite] = []
        self._unstored: list[list[Substitution]] = []  # their error was raised
        self._markers = {store.url: Marker(store) for store in stores.values()}

    def name(self, substitutions: Sequence[Substitution]) -> str:
        """Return where these substitutions are on record, for an error's text."""
        urls: set[str] = set()
        for entry in substitutions:
            if entry.source in self._stores:
                urls.add(self._stores[entry.source].url)
        if not urls:
            return "this process's log (Loader(ledger=) keeps them)"
        return ", ".join(f"{url}/{self._prefix}" for url in sorted(urls))

    def write(self, substitutions: Sequence[Substitution]) -> None:
        """Log a batch's substitutions, and write them in a thread. Raises: the error of an earlier write."""
        ended = []
        if self._pending:
            ended = [write for write in self._pending if write.future.done()]
        if self._unstored:
            self._retry()
        if substitutions:
            self._submit_substitutions(substitutions)
        if ended:
            self._raise_failed(ended)

    def _submit_substitutions(self, substitutions: Sequence[Substitution]) -> None:
        for attempts in [list(group) for _, group in groupby(substitutions, lambda entry: entry.slot)]:
            logger.warning(
                "step %d slot %d: a corrupt sample was %s (%s)",
                attempts[0].step,
                attempts[0].slot,
                "substituted" if attempts[0].attempt else "masked",
                attempts[0].error,
            )
            if attempts[0].source in self._stores:
                self._submit(attempts, is_retry=False)

    def _submit(self, attempts: list[Substitution], *, is_retry: bool) -> None:
        future = self._thread().submit(self._put, attempts)
        self._pending.append(_SlotWrite(attempts, future, is_retry=is_retry))

    def _retry(self) -> None:
        unstored = self._unstored
        self._unstored = []
        for attempts in unstored:
            self._submit(attempts, is_retry=True)

    def flush(self) -> None:
        self._retry()
        self._raise_failed(list(self._pending))

    def close(self) -> None:
        self._retry()
        if self._writer is not None:
            self._writer.shutdown(wait=True)  # finishes its queue, also at the interpreter's exit
            self._writer = None
        for write in [write for write in self._pending if write.is_retry]:
            error = write.future.exception()
            if error is None:
                continue
            # Raised before: the end of a training that failed for it has no second error.
            self._pending.remove(write)
            self._unstored.append(write.attempts)
            logger.error("step %d: a substitution is not on record: %s", write.attempts[0].step, error)
        self._raise_failed(list(self._pending))

    def _thread(self) -> ThreadPoolExecutor:
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="penstock-ledger")
        return self._writer

    def _raise_failed(self, writes: list[_SlotWrite]) -> None:
        for write in writes:
            error = write.future.exception()
            self._pending.remove(write)
            if error is not None:
                self._unstored.append(write.attempts)
                raise error

    def _put(self, attempts: list[Substitution]) -> None:
        """Write one slot's substitutions as an object. Its name is a hash of the samples: a repetition writes none."""
        first = attempts[0]
        named = json.dumps([entry.identity for entry in attempts]).encode()
        key = f"{self._prefix}{first.step:019d}-{first.slot:010d}-{hashlib.sha256(named).hexdigest()[:16]}.jsonl"
        lines = [json.dumps(entry.to_json(), ensure_ascii=False, separators=(",", ":")) for entry in attempts]
        store = self._stores[first.source]
        try:
            self._markers[store.url].create_if_empty()
            store.put_if_absent(key, "".join(line + "\n" for line in lines).encode())
        except AlreadyExists:
            pass  # the same substitution with another error text, such as an address
        except StoreError as error:
            error.add_note(
                f"while writing {store.url}/{key}: a sample was substituted and is not on record. Let the job create "
                "objects under ledgers/, or give it a root of its own for them, Loader(ledger=loader.Root(...))"
            )
            raise


def open_ledger(
    plan: Plan,
    world: World,
    stored: Mapping[int, View],
    root: object,
    trail: object = None,
) -> Ledger:
    """Return a rank's ledger.

    stored: source -> its view. root: location of the entries; None for each stored source's own root. trail: its
    root has the entries of datasets, which have none. Without both, their entries are in batches and log only.

    Raises: InvalidRuntime for another root.
    """
    if not isinstance(root, Root | None):
        raise InvalidRuntime(
            f"ledger = {root!r}; accepted: None, or a loader.Root that this job may write to",
            what="ledger",
            given=root,
            accepted="None, or a loader.Root",
        )
    trail_root = getattr(trail, "root", None)  # another type is refused where the run log is opened
    stores: dict[str, Store] = {}
    for source, name in enumerate(plan.source_names):
        if root is not None:
            stores[name] = root.store
        elif source in stored:
            stores[name] = stored[source].version.store
        elif trail_root is not None:
            stores[name] = trail_root.store
    return Ledger(plan, world, stores)


def read_ledger(root: Root, plan: Plan | str) -> list[Substitution]:
    """Return every substitution of a plan (or its hash) recorded in this root, by step, slot and attempt.

    Costs a listing, and one read per substituted slot. If the root has mirrors, the primary is read: mirrors have no
    ledgers. Raises: Corrupt if an object is not a ledger; FormatTooNew; StoreError.
    """
    prefix = _folder(plan if isinstance(plan, str) else plan.hash)
    entries: dict[tuple[str | int, ...], Substitution] = {}
    store = primary_store(root.store)
    for info in store.list(prefix):
        for line in store.get(info.key).data.splitlines():
            entry = _parse_line(line, f"{root.url}/{info.key}")
            entries.setdefault(entry.identity, entry)
    return sorted(
        entries.values(),
        key=lambda substitution: (substitution.step, substitution.slot, substitution.attempt),
    )


def _folder(plan_hash: str) -> str:
    return f"ledgers/{plan_hash}/"


def _parse_line(line: bytes, name: str) -> Substitution:
    """Return a line of a ledger. name: of its object. Raises: FormatTooNew; Corrupt."""
    try:
        body = parse_json_object(line)
        if body["format"] > LEDGER_FORMAT:
            raise FormatTooNew(
                f"{name} has ledger format {body['format']}; this package reads up to {LEDGER_FORMAT}: "
                "upgrade penstock-data (docs/install.md)",
                what="ledger format",
                where=name,
                given=body["format"],
                accepted=LEDGER_FORMAT,
            )
        return Substitution.from_json(body)
    except FormatTooNew:
        raise
    except DAMAGED as error:
        raise Corrupt(
            f"{name} is not a ledger ({type(error).__name__}: {error}); restore or delete it",
            what="ledger",
            where=name,
            given=type(error).__name__,
        ) from error
