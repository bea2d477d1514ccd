"""Collate samples into finished batches: fields, mask, identities, digest and metrics of each step."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...dataset.reading.sample_places import Int64s
from ...dataset.shards.shard import crc32c
from ...errors import InvalidRuntime, MissingDependency
from ...order.digests import slot_hashes, slot_identities
from ...order.random.keyed_permutation import I64
from ..recipe.rank_slots import RankSlots
from ..recipe.recipe import Recipe
from .batch import MAKING, Batch, StepMetrics, fields_nbytes, step_metrics
from .columns import PADDED, Columns
from .nested_values import list_column
from .slot_ids import Keys, SlotIds
from .substitution import Substitution

U32 = NDArray[np.uint32]


def term_table(adds: Callable[[int], int]) -> U32:
    """Return uint32 [4, 256]: the term for each byte of a 32-bit number. adds: bit -> term."""
    table = np.zeros((4, 256), np.uint32)
    for bit in range(32):
        byte, low = divmod(bit, 8)
        table[byte, 1 << low : 2 << low] = table[byte, : 1 << low] ^ np.uint32(adds(bit))
    return table


def look_up_terms(table: U32, numbers: NDArray[np.integer]) -> U32:
    first, *others = (table[byte][(numbers >> (8 * byte)) & 0xFF] for byte in range(4))
    return reduce(np.bitwise_xor, others, first)


def sample_crcs(crcs: Mapping[str, Int64s]) -> Int64s:
    """Return int64 [n]: one CRC-32C per sample over its fields, sorted by name. crcs: field -> int64 [n].

    The message has, for each field: name, zero byte, CRC-32C of the bytes as little-endian uint32. Its CRC is the CRC
    of the message with zeros for all checksums, XORed with each checksum's term. O(fields) array operations.
    """
    names = sorted(crcs)
    blank, tables = _tables(tuple(names))
    out = np.full(len(crcs[names[0]]), blank, np.uint32)
    for name, table in zip(names, tables, strict=True):
        out ^= look_up_terms(table, crcs[name])
    return out.astype(np.int64)


@lru_cache(maxsize=256)
def _tables(names: tuple[str, ...]) -> tuple[int, tuple[U32, ...]]:
    """Return (CRC of the message with zeros for checksums, one table of terms per name)."""
    stretches = [name.encode() + bytes(5) for name in names]
    message = b"".join(stretches)
    blank, ends = crc32c(message), accumulate(map(len, stretches))

    def adds(end: int, bit: int) -> int:
        number = (1 << bit).to_bytes(4, "little")
        return crc32c(message[: end - 4] + number + message[end:]) ^ blank

    return blank, tuple(term_table(partial(adds, end)) for end in ends)


def to_jax(name: str, value: Any, device: Any = None) -> Any:
    """Return a field's value with its numpy arrays on a JAX device or sharding; None is JAX's default device.

    Dtypes that JAX lacks (strings, dates) stay numpy. While JAX is limited to 32 bits, 64-bit numbers are rounded to 32
    as JAX does. Times of windows (`anchor_ns`, `<field>.age_ns`) then stay numpy: 32 bits hold two seconds of
    nanoseconds.

    Raises: InvalidRuntime for numbers that 32 bits cannot hold, which JAX would wrap silently or make infinite;
    MissingDependency if jax is missing.
    """
    if isinstance(value, list):
        return [to_jax(name, item, device) if isinstance(item, np.ndarray) else item for item in value]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        return value
    jax = _jax()
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    if dtype != value.dtype and name.endswith(NANOSECONDS):
        return value
    return jax.device_put(value if dtype == value.dtype else _narrow(name, value, dtype), device)


def _narrow(name: str, value: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    with np.errstate(over="ignore"):  # numpy would warn of values that become infinite, which `lost` finds
        narrow = value.astype(dtype)
    lost = narrow != value if value.dtype.kind in "iu" else np.isfinite(narrow) != np.isfinite(value)
    if lost.any():
        first = value[lost].flat[0]
        message = f"field {name!r} holds {first!r}, which is not {dtype}, and JAX would change it; {_FITTING}"
        raise InvalidRuntime(message, what=name, given=first, accepted=str(dtype))
    return narrow


def _missing(name: str) -> MissingDependency:
    problem = f"framework={name!r} needs {name}, which is not installed: pip install 'penstock-data[{name}]'."
    return MissingDependency(f"{problem} framework='numpy' needs nothing", what=name)


def _jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise _missing("jax") from error
    return jax


NANOSECONDS = ("anchor_ns", ".age_ns")
"""Endings of the fields with the times of windows."""
FRAMEWORKS = ("torch", "numpy", "jax")

_INT64 = np.iinfo(np.int64)
_FITTING = "call jax.config.update('jax_enable_x64', True) before the first batch, or let a transform return what fits"


def collate(columns: Columns, framework: str, *, like: Columns | None = None) -> tuple[dict[str, Any], Any]:
    """Return (fields, mask) of a batch; field names are in the order in which samples introduce them.

    framework: one of FRAMEWORKS. like: one slot with a sample; a batch of padding takes its fields and shapes.

    The mask is bool [slots], True at real slots: a tensor for torch, an array on the device for jax. A field's values
    become:

    - one array [slots, ...] of native byte order, if all are arrays of one shape and dtype (numpy scalars have rank 0).
      For torch it is a tensor, or an array if torch lacks the dtype;
    - bool, int64 or float64 [slots], if all are bool, int within int64, or int and float;
    - torch.stack, if all are tensors of one shape and dtype (torch only);
    - otherwise a list, whose arrays become torch's or jax's. It holds None for a sample that lacks the field.

    A padded slot is zeros in an array; in a list "" or b"" among str or bytes, else None.

    Raises: InvalidRuntime (another framework; a number that jax would change); MissingDependency.
    """
    if framework not in FRAMEWORKS:
        message = f"framework={framework!r}; accepted: {', '.join(map(repr, FRAMEWORKS))}"
        raise InvalidRuntime(message, what="framework", given=framework, accepted=list(FRAMEWORKS))
    return as_framework(*gather_columns(columns, framework, like=like), framework)


def gather_columns(
    columns: Columns, framework: str, *, like: Columns | None = None
) -> tuple[dict[str, Any], np.ndarray]:
    """Return `collate` as numpy arrays, without importing the framework; torch, if imported, stacks its tensors."""
    torch = _find_torch(framework)
    mask, names = columns.mask(), columns.names()
    fields: dict[str, Any] = {}
    if not names:
        if like is not None:
            for name in like.names():
                is_list = name in like.list_fields
                fields[name] = _field([PADDED] * len(columns), like.values(name), torch, is_list=is_list)
        return fields, mask
    for name in names:
        whole = columns.whole(name)
        if whole is not None:
            fields[name] = whole
            continue
        values = columns.values(name)
        examples = [value for value in values if value is not PADDED]
        fields[name] = _field(values, examples, torch, is_list=name in columns.list_fields)
    return fields, mask


def as_framework(fields: Mapping[str, Any], mask: np.ndarray, framework: str) -> tuple[dict[str, Any], Any]:
    """Return the fields and mask of `gather_columns` as the framework's arrays, in the same memory."""
    if framework == "jax":
        return {name: to_jax(name, values) for name, values in fields.items()}, to_jax("mask", mask)
    if framework == "numpy":
        return dict(fields), mask
    torch = _torch()
    return {name: _torch_field(values, torch) for name, values in fields.items()}, torch.from_numpy(mask)


def _find_torch(framework: str) -> Any:
    torch = sys.modules.get("torch") if framework == "torch" else None
    return torch if hasattr(torch, "Tensor") else None  # another thread may be importing it


def collate_field(values: list[Any], examples: list[Any], framework: str) -> Any:
    return _field(values, examples, _find_torch(framework))


def padding_value(kinds: set[type]) -> Any:
    return next(iter(kinds))() if kinds == {bytes} or kinds == {str} else None


def import_framework(framework: str) -> None:
    if framework == "torch":
        _torch()
    elif framework == "jax":
        _jax()


def _field(values: list[Any], examples: list[Any], torch: Any, *, is_list: bool = False) -> Any:
    if is_list:
        return list_column(values, examples)
    first, kinds = examples[0], set(map(type, examples))
    if kinds == {bytes} or kinds == {str}:
        return [padding_value(kinds) if value is PADDED else value for value in values]
    if isinstance(first, np.ndarray | np.generic):
        if _alike(examples, np.ndarray | np.generic) and not first.dtype.hasobject:
            return _stack(values, first.shape, first.dtype.newbyteorder("="))
    elif torch is not None and isinstance(first, torch.Tensor):
        if _alike(examples, torch.Tensor):
            return torch.stack([torch.zeros_like(first) if value is PADDED else value for value in values])
    else:
        dtype = _number_dtype(examples, kinds)
        if dtype is not None:
            return _stack(values, (), dtype)
    return [None if value is PADDED else value for value in values]


def _alike(values: list[Any], kinds: Any) -> bool:
    first = values[0]
    return all(
        isinstance(value, kinds) and value.shape == first.shape and value.dtype == first.dtype
        for value in values
    )


def _number_dtype(values: list[Any], kinds: set[type]) -> np.dtype[Any] | None:
    if kinds == {bool}:
        return np.dtype(np.bool_)
    if kinds == {int} and all(_INT64.min <= value <= _INT64.max for value in values):
        return np.dtype(np.int64)
    if (
        kinds <= {int, float}
        and float in kinds
        and all(abs(value) <= 2**53 for value in values if type(value) is int)
    ):
        return np.dtype(np.float64)
    return None


def _stack(values: list[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    out = np.empty((len(values), *shape), dtype)
    zero = np.zeros((), dtype)
    for slot, value in enumerate(values):
        out[slot] = zero if value is PADDED else value
    return out


def _torch_field(value: Any, torch: Any) -> Any:
    if isinstance(value, list):
        return [_torch_field(item, torch) if isinstance(item, np.ndarray) else item for item in value]
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        return value
    array = value
    if not (value.flags.c_contiguous and value.flags.writeable and value.dtype.isnative):
        array = np.require(value, value.dtype.newbyteorder("="), ["C", "W"])
    try:
        return torch.from_numpy(array)
    except TypeError:
        return array  # torch lacks this dtype


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise _missing("torch") from error
    return torch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeliveredSamples:
    """Samples delivered for a batch, one per row. Their values are in the batch's columns."""

    keys: Keys
    """Key per row; "" at padding."""
    crcs: I64
    """int64 [rows]: CRC-32C for the digest; arbitrary at padding."""
    substitutions: list[Substitution]
    """Substitutions for corrupt samples."""
    totals: dict[str, int] = field(default_factory=dict)
    """`Batch.totals`."""


class Delivered(Protocol):
    """Samples of one kind that were delivered in a batch."""

    @property
    def rows(self) -> I64:
        """int64 [n]: row of each sample in the batch."""

    def keys(self) -> list[str]:
        """Return the key of each sample."""

    def field_crcs(self) -> Iterator[tuple[I64 | slice, Mapping[str, Int64s]]]:
        """Yield (numbers, field -> CRC-32C of each) for samples that have the same fields."""


def build_delivered(
    n: int, delivered: Sequence[Delivered], substitutions: list[Substitution]
) -> DeliveredSamples:
    keys = Keys(partial(_keys, n, delivered))
    return DeliveredSamples(keys=keys, crcs=row_crcs(n, delivered), substitutions=substitutions)


def row_crcs(n: int, delivered: Sequence[Delivered]) -> I64:
    """Return int64 [n]: the CRC-32C over the fields of each row's last sample."""
    crcs = np.zeros(n, np.int64)
    for samples in delivered:
        for numbers, by_field in samples.field_crcs():
            crcs[samples.rows[numbers]] = sample_crcs(by_field)
    return crcs


def _keys(n: int, delivered: Sequence[Delivered]) -> list[str]:
    keys = [""] * n
    for samples in delivered:
        for row, key in zip(samples.rows.tolist(), samples.keys(), strict=True):
            keys[row] = key
    return keys


Collate = Callable[..., tuple[dict[str, Any], Any]]


class Finish:
    def __init__(self, recipe: Recipe, collate: Collate) -> None:
        self._recipe, self._collate = recipe, collate
        self._names = recipe.plan.source_names

    def __call__(
        self,
        rank_slots: RankSlots,
        columns: Columns,
        delivered: DeliveredSamples,
    ) -> list[Batch]:
        if rank_slots.n_padded:
            out = [self._padding(rank_slots, columns)]
        else:
            out = self._samples(rank_slots, columns, delivered)
        for batch in out:
            batch.totals = delivered.totals
        metrics = step_metrics()
        for name in out[0].stats:
            total = int(sum([batch.stats[name] for batch in out]))
            metrics.count(name, total)
        return out

    def _samples(
        self,
        rank_slots: RankSlots,
        columns: Columns,
        delivered: DeliveredSamples,
    ) -> list[Batch]:
        steps = np.repeat(np.array(rank_slots.steps, np.uint64), np.diff(rank_slots.starts))
        hashes = slot_hashes(
            steps, rank_slots.number, slot_identities(self._recipe.plan, rank_slots.slots), delivered.crcs
        )
        hashes[~rank_slots.valid] = 0
        digests = np.add.reduceat(hashes, rank_slots.starts[:-1])
        real = np.add.reduceat(rank_slots.valid, rank_slots.starts[:-1], dtype=np.int64)
        names, slots = self._names, rank_slots.slots
        sources = np.where(rank_slots.valid, slots.source, np.int32(-1))
        ordinals = np.where(rank_slots.valid, slots.ordinal, -1)
        of_source = np.bincount(slots.source[rank_slots.valid], minlength=len(names))
        samples = step_metrics().samples
        for name, count in zip(names, of_source.tolist(), strict=True):
            samples[name] = samples.get(name, 0) + count
        out = []
        for (step, rows), (fields, mask), batch, digest, n in zip(
            rank_slots.parts(),
            self._collated(rank_slots, columns),
            rank_slots.batches,
            digests.tolist(),
            real.tolist(),
            strict=True,
        ):
            ids = SlotIds(names=names, source=sources[rows], keys=delivered.keys, rows=rows)
            out.append(self._batch(step, ids, ordinals[rows], fields, mask, digest, n, batch))
        for substitution in delivered.substitutions:
            out[rank_slots.steps.index(substitution.step)].substitutions.append(substitution)
        return out

    def _collated(self, rank_slots: RankSlots, columns: Columns) -> Iterator[tuple[dict[str, Any], Any]]:
        framework, parts = self._recipe.framework, [rows for _, rows in rank_slots.parts()]
        if len(parts) > 1 and framework != "jax" and columns.is_even:
            fields, mask = self._collate(columns, framework)
            cut = [_cut(values, parts) for values in (mask, *fields.values())]
            for part_mask, *values in zip(*cut, strict=True):
                yield dict(zip(fields, values, strict=True)), part_mask
            return
        for part in columns.parts(parts):
            yield self._collate(part, framework)

    def _padding(self, rank_slots: RankSlots, columns: Columns) -> Batch:
        fields, mask = self._collate(Columns(rank_slots.n_padded), self._recipe.framework, like=columns)
        padding = np.full(rank_slots.n_padded, -1)
        ids = SlotIds.of(self._names, padding.astype(np.int32), [""] * rank_slots.n_padded)
        return self._batch(rank_slots.steps[0], ids, padding, fields, mask, 0, 0, rank_slots.batches[0])

    def _batch(
        self,
        step: int,
        ids: SlotIds,
        ordinals: I64,
        fields: dict[str, Any],
        mask: Any,
        digest: int,
        n_real: int,
        global_batch: int,
    ) -> Batch:
        plan, nbytes = self._recipe.plan, fields_nbytes(fields)
        return Batch(
            step=step,
            ids=ids,
            sources=ids.source,
            ordinals=ordinals,
            mask=mask,
            weight=n_real * self._recipe.world.world_size / global_batch,
            digest=digest,
            fields=fields,
            nbytes=nbytes,
            bucket=None if plan.buckets is None else plan.bucket(step),
            stats={"batches": 1, "samples": n_real, "decoded_bytes": nbytes},
        )


def _cut(values: Any, parts: list[slice]) -> Sequence[Any]:
    if not hasattr(values, "unsafe_split_with_sizes"):
        return [values[rows] for rows in parts]
    # Half the cost of slicing a tensor; like slices, parts may be written to while gradients are recorded.
    cut: Sequence[Any] = values.unsafe_split_with_sizes([rows.stop - rows.start for rows in parts])
    return cut


def with_costs(batches: list[Batch], metrics: StepMetrics) -> list[Batch]:
    """Return batches made together, each with its cost in `stats`: its own counts, and a share of the common ones."""
    n = len(batches)
    counts = {name: amount for name, amount in metrics.totals().items() if name not in batches[0].stats}
    common = {MAKING[stage]: spent / n for stage, spent in metrics.seconds.items()}
    common |= {name: amount // n for name, amount in counts.items()}
    for batch in batches:
        batch.stats = common | batch.stats
        batch.slowest = metrics.slowest.get(batch.step)
    for name, amount in counts.items():
        for batch in batches[: amount % n]:  # the rest of the division
            batch.stats[name] += 1
    return batches
