"""The batch that the training loop receives for one step, and what it cost."""

import resource
import threading
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from time import perf_counter, thread_time
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ...dataset.reading.pinned_reads import ShardRead
from ...dataset.shards.address import SampleAddress
from ...errors import InvalidRuntime
from ...storage import ByteRange
from ...storage.requests import Traffic
from .nested_values import with_changed_leaves
from .slot_ids import Ids, SlotIds
from .substitution import Substitution

RUSAGE_THREAD = getattr(resource, "RUSAGE_THREAD", None)  # Linux only
MAKING = {
    "plan": "plan_seconds",
    "address": "address_seconds",
    "fetch": "fetch_wait_seconds",
    "verify": "verify_seconds",
    "decode": "decode_seconds",
    "transform": "transform_seconds",
    "collate": "collate_seconds",
}
"""Stage -> its metric, in order. `verify` adds up a pool's threads; `fetch` is the time spent waiting for them, less
`verify`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowSample:
    """The sample that took longest in one stage of a step."""

    step: int
    """Global step."""
    stage: str
    """Stage of `MAKING`, such as "fetch" or "decode"."""
    seconds: float
    """Seconds that the stage took for the sample, or that one read took."""
    source: str
    """Source name in the plan."""
    key: str
    """The sample's key; for "fetch", the key of the read's first sample."""
    version: str
    """Version name, such as "photos@3"."""
    path: str
    """Path of the shard in the root."""
    offset: int
    """Offset of the read's first byte; for other stages, of the sample's largest field."""
    nbytes: int
    """Bytes of the read; for other stages, of the sample's largest field."""
    wait_s: float = 0.0
    """Seconds that the consumer waited for the step's batch."""


def _thread_usage() -> tuple[float, int]:
    """Return the calling thread's CPU seconds, and how often it has waited; -1 if the system does not count that."""
    if RUSAGE_THREAD is None:
        return thread_time(), -1
    usage = resource.getrusage(RUSAGE_THREAD)
    return usage.ru_utime + usage.ru_stime, usage.ru_nvcsw


def _busy_s(before: tuple[float, int], spent_s: float, verified_s: float) -> float:
    """Return how many of the thread's `spent_s` it did not wait. verified_s: seconds outside of them."""
    cpu_s, n_waits = _thread_usage()
    if n_waits == before[1] != -1:
        return spent_s  # also without a core, which other programs had
    return min(spent_s, max(0.0, cpu_s - before[0] - verified_s))


class StepMetrics:
    """Costs of steps that are made together; thread-safe."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = steps
        self.traffic = Traffic()
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self.samples: dict[str, int] = {}
        self.slowest: dict[int, SlowSample] = {}
        self.reads_s: list[float] = []
        self.step_of: Callable[[int], int] | None = None
        """Row being made -> its step; None if all rows are in the first step."""
        self._lock = threading.Lock()

    def count(self, name: str, amount: int = 1) -> None:
        with self._lock:
            self.counts[name] = self.counts.get(name, 0) + amount

    def add_seconds(self, stage: str, seconds: float) -> None:
        with self._lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    @contextmanager
    def time_stage(self, stage: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.add_seconds(stage, perf_counter() - start)

    @contextmanager
    def time_fetch(self) -> Iterator[None]:
        """Time a block as `timed("fetch")` does, less the seconds of `verify` inside. Count what was not waiting."""
        start = perf_counter()
        before = self.seconds.get("verify", 0.0)
        usage = _thread_usage()
        try:
            yield
        finally:
            verified = self.seconds.get("verify", 0.0) - before
            spent_s = max(0.0, perf_counter() - start - verified)
            self.add_seconds("fetch", spent_s)
            self.count("fetch_busy_us", round(1e6 * _busy_s(usage, spent_s, verified)))

    def sample(
        self, stage: str, seconds: float, source: str, address: Callable[[], SampleAddress], row: int
    ) -> None:
        """Add a sample's seconds in a stage; a context manager would cost three times as much."""
        self.add_seconds(stage, seconds)
        if self.step_of is None:
            step = self.steps[0]
        else:
            step = self.step_of(row)
        before = self.slowest.get(step)
        if before is None or seconds > before.seconds:
            self.slow(stage, seconds, source, address, step)

    def read(self, source: str, read: ShardRead) -> None:
        self.add_seconds("verify", read.verify_s)
        self.reads_s.append(read.fetch_s)
        self.slow("fetch", read.fetch_s, source, read.first_address, self.steps[0], (read.path, read.span))

    def slow(
        self,
        stage: str,
        seconds: float,
        source: str,
        address: Callable[[], SampleAddress],
        step: int,
        read: tuple[str, ByteRange] | None = None,
    ) -> None:
        """Keep the sample if it is its step's slowest so far.

        read: path and span; None for the sample's largest field. `address` is called only for a kept sample.
        """
        with self._lock:
            before = self.slowest.get(step)
            if before is not None and seconds <= before.seconds:
                return
            at = address()
            if not at.fields:
                return
            if read is None:
                place = max(at.fields.values(), key=lambda field: field.nbytes)
                read = place.path, ByteRange(place.offset, place.nbytes)
            path, span = read
            self.slowest[step] = SlowSample(
                step=step,
                stage=stage,
                seconds=seconds,
                source=source,
                key=at.key,
                version=at.version,
                path=path,
                offset=span.offset,
                nbytes=span.nbytes,
            )

    def totals(self) -> dict[str, int]:
        traffic = self.traffic
        seen = {"requests": traffic.requests, "retries": traffic.retries, "fallbacks": traffic.fallbacks}
        return {**self.counts, **seen}


_current: ContextVar[StepMetrics] = ContextVar("penstock_step_metrics")


@contextmanager
def use_metrics(metrics: StepMetrics) -> Iterator[None]:
    """Let `step_metrics` return these metrics in this context.

    Other threads do not inherit the context: submit their work with `copy_context().run`.
    """
    # The token restores the metrics of an outer batch, whose transform may read another loader.
    token = _current.set(metrics)
    try:
        yield
    finally:
        _current.reset(token)


def step_metrics() -> StepMetrics:
    """Return the metrics of the steps that this context makes. Costs 0.05 us.

    Raises: LookupError outside of `use_metrics`.
    """
    return _current.get()


class _IdsOnDemand:
    """`Batch.ids`, listed on first use."""

    def __set__(self, batch: "Batch", ids: Ids | SlotIds) -> None:
        batch.__dict__["ids"] = ids

    def __get__(self, batch: "Batch | None", owner: type) -> Ids:
        if batch is None:
            raise AttributeError("ids")  # the dataclass must see no default
        ids = batch.__dict__["ids"]
        if isinstance(ids, SlotIds):
            ids = batch.__dict__["ids"] = ids.listed()
        return cast(Ids, ids)


@dataclass(kw_only=True)
class Batch:
    """One rank's slots of one global batch; batch["jpg"] is a stacked array, or a list if shapes differ.

    Not a collections.abc.Mapping: torch's DataLoader would turn it into a plain dict.
    """

    step: int
    """Global step."""
    ids: _IdsOnDemand = _IdsOnDemand()
    """List of (source, key) per slot, None at padding. A substituted slot has its substitute's."""
    mask: Any
    """bool [slots], True at real slots; a tensor for torch, a jax.Array for jax."""
    weight: float
    """Valid slots * world size / global batch. Multiply a mean loss by it: its mean over ranks is the sum over samples
    / global batch.
    """
    digest: int
    """64-bit hash of the rank's samples. The sum over ranks mod 2^64 is the same for every world size."""
    fields: dict[str, Any]
    """Field name -> column [slots, ...], or a list of `slots` values if shapes differ. Undecoded fields are a
    `BytesColumn`, equal to a list of `bytes`.
    """
    sources: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    """int32 [slots]: index of each slot's source in `plan.source_names`; -1 at padding. Always numpy."""
    ordinals: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """int64 [slots]: each sample's ordinal in its source's version; -1 at padding. Always numpy. Costs less than `ids`;
    pass it to `version.address`.
    """
    nbytes: int = 0
    """Size of the decoded columns in bytes."""
    bucket: str | None = None
    """Bucket label that all samples share, or None."""
    wait_s: float = field(default=0.0)
    """Seconds that the consumer waited for this batch."""
    substitutions: list[Substitution] = field(default_factory=list)
    """Substitutions for corrupt samples, by slot and attempt."""
    stats: dict[str, float] = field(default_factory=dict)
    """Metrics of this step, such as seconds per stage (docs/throughput.md)."""
    slowest: SlowSample | None = None
    """The step's slowest sample, or None."""
    micro: int = 0
    """Number of this micro batch in the rank's part, from 0; see `micro_batches`."""
    micros: int = 1
    """Number of micro batches in the rank's part; 1 for the whole part."""
    collated: Any = None
    """Result of `loader.items(collate=)` for the rank's real slots; None without it."""
    totals: dict[str, int] = field(default_factory=dict)
    """Numbers of a packed step over all ranks, such as its tokens; empty without packing."""
    tuple_items: bool = False
    """True if the items of a dataset were tuples: then the batch is not iterable."""

    @property
    def last_micro(self) -> bool:
        """True for the last micro batch: step the optimizer after it."""
        return self.micro + 1 == self.micros

    def micro_batches(self, count: int) -> "list[Batch]":
        """Return the part cut into `count` micro batches in order, for gradient accumulation.

        The sum of (mean loss * weight) over the micro batches, averaged over ranks, equals the whole part's. The first
        one carries the part's digest, substitutions, stats, slowest and wait_s; the others have 0 or none.

        Raises: InvalidRuntime if there are more micro batches than slots.
        """
        if self.collated is not None:
            raise InvalidRuntime(
                f"micro_batches({count!r}) of a batch with loader.items(collate=): what collate returned cannot be "
                "cut; leave collate= out, and join the fields of each micro batch",
                what="micro_batches",
                given=count,
                accepted="a batch without collate=",
            )
        if not 1 <= count <= len(self):
            raise InvalidRuntime(
                f"micro_batches({count!r}) of {len(self)} slots; 1 to {len(self)} are possible",
                what="micro_batches",
                given=count,
                accepted=f"1 to {len(self)}",
            )
        valid = sum(slot_id is not None for slot_id in self.ids)
        pieces = []
        for micro in range(count):
            rows = slice(micro * len(self) // count, (micro + 1) * len(self) // count)
            ids = self.ids[rows]
            fields = {name: values[rows] for name, values in self.fields.items()}
            piece = replace(
                self,
                ids=ids,
                sources=self.sources[rows],
                ordinals=self.ordinals[rows],
                mask=self.mask[rows],
                weight=self.weight * sum(slot_id is not None for slot_id in ids) / max(1, valid),
                fields=fields,
                nbytes=fields_nbytes(fields),
                micro=micro,
                micros=count,
            )
            if micro:
                piece.digest = 0
                piece.wait_s = 0.0
                piece.slowest = None
                piece.substitutions = []
                piece.stats = {}
            pieces.append(piece)
        return pieces

    def __repr__(self) -> str:
        facts = [f"step={self.step}", f"{len(self)} slots"]
        if self.bucket is not None:
            facts.append(f"bucket={self.bucket!r}")
        if self.micros > 1:
            facts.append(f"micro {self.micro} of {self.micros}")
        if self.substitutions:
            facts.append(f"{len(self.substitutions)} substitutions")
        # Imported here: no training needs it to start.
        from .column_text import column_text

        facts += [f"{name}: {column_text(column)}" for name, column in self.items()]
        return f"Batch({', '.join(facts)})"

    def __getitem__(self, name: str) -> Any:
        try:
            return self.fields[name]
        except KeyError:
            raise KeyError(
                f"no field {name!r} in this batch; it has {', '.join(map(repr, self.fields))}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        if self.tuple_items:
            # `images, labels = batch` would take two names for two columns, without an error.
            raise InvalidRuntime(
                self._unpacking_refused(), what="batch", given="tuple", accepted="columns by name"
            )
        return iter(self.fields)

    def __contains__(self, name: object) -> bool:
        return name in self.fields

    def __len__(self) -> int:
        return len(self.__dict__["ids"])

    def keys(self) -> KeysView[str]:
        return self.fields.keys()

    def items(self) -> ItemsView[str, Any]:
        return self.fields.items()

    def _unpacking_refused(self) -> str:
        if self.collated is not None:
            instead = "batch.collated"
        else:
            instead = ", ".join(f"batch[{name!r}]" for name in self.fields)
        return (
            "a batch of tuples is not unpacked: iterating a batch gives the names of its fields. Take its columns: "
            f"{instead}. batch.keys() has the names"
        )

    def pin_memory(self) -> "Batch":
        """Return this batch with its tensors in pinned memory; torch's DataLoader calls it."""
        self.mask, self.fields, self.collated = self._with_tensors(lambda tensor: tensor.pin_memory())
        return self

    def to(self, device: Any, non_blocking: bool = False) -> "Batch":
        """Return a batch with its tensors on a torch device; Lightning and Accelerate call it.

        non_blocking: as for `torch.Tensor.to`. numpy and jax arrays stay where they are.
        """
        mask, fields, collated = self._with_tensors(
            lambda tensor: tensor.to(device, non_blocking=non_blocking)
        )
        ids = self.__dict__["ids"]
        return replace(
            self,
            ids=ids,
            mask=mask,
            fields=fields,
            collated=collated,
        )

    def _with_tensors(self, change: Callable[[Any], Any]) -> tuple[Any, dict[str, Any], Any]:
        """Return mask, fields and collated values, with `change` applied to the tensors."""

        def changed(value: Any) -> Any:
            if isinstance(value, list):
                return [changed(item) for item in value]
            # only torch's tensors have it
            if hasattr(value, "pin_memory"):
                return change(value)
            return value

        fields = {name: changed(value) for name, value in self.fields.items()}
        collated = with_changed_leaves(self.collated, changed)
        return changed(self.mask), fields, collated


def fields_nbytes(fields: Mapping[str, Any]) -> int:
    """Return the number of bytes of arrays, tensors, bytes and str in a collated batch."""
    total = 0
    for value in fields.values():
        total += _nbytes(value)
    return total


def _nbytes(value: Any) -> int:
    if isinstance(value, list):
        if set(map(type, value)) <= {bytes, str}:
            return sum(map(len, value))
        return sum(map(_nbytes, value))
    if isinstance(value, bytes | str):
        return len(value)
    return int(getattr(value, "nbytes", 0))
