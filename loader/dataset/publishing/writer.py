"""The writer of a version: `with root.write(...) as writer`."""

import secrets
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ...errors import EmptyVersion, InvalidSample, RootError
from ..shards.part import Part
from ..shards.shard import DEFAULT_SHARD_BYTES
from ..versions.version import Version
from ..writing.part_writer import PartWriter, field_mismatch_error, group_chooser, make_sample
from ..writing.spill import Spill
from .commit import check_facts, check_producer
from .publish import abort_failed

if TYPE_CHECKING:
    from ..root_calls import RootCalls

MAX_SHARD_BYTES = 8 * 2**30


class Writer:
    """Collects samples (spilling to disk), cuts them into parts in hash order, and publishes on a clean exit.

    An exception inside the `with` publishes nothing and aborts the transaction. `version` is set afterwards.
    """

    dataset: str
    """Dataset name."""

    def __init__(
        self,
        root: "RootCalls",
        dataset: str,
        *,
        group: str = "media",
        groups: Mapping[str, str] | None = None,
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        part_samples: int | None = None,
        producer: Mapping[str, Any] | None = None,
        facts: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if not 1 <= shard_bytes <= MAX_SHARD_BYTES:
            raise InvalidSample(
                f"shard_bytes={shard_bytes}; accepted: 1 to {MAX_SHARD_BYTES}, usually 64 MiB to 1 GiB",
                what="shard_bytes",
                given=shard_bytes,
                accepted=[1, MAX_SHARD_BYTES],
            )
        if part_samples is not None and part_samples < 1:
            raise InvalidSample(
                f"part_samples={part_samples}; accepted: at least 1, or None for no limit",
                what="part_samples",
                given=part_samples,
                accepted="at least 1, or None for no limit",
            )
        self._root = root
        self.dataset = dataset
        self._group_of = group_chooser(group, groups)
        self._shard_bytes = shard_bytes
        self._part_samples = part_samples
        self._producer = check_producer(producer)
        self._facts = check_facts(facts)
        self._spill: Spill | None = None  # only inside the `with`
        self._txn = ""
        self._first: tuple[str, frozenset[str]] | None = None  # key and field names of the first sample
        self._version: Version | None = None

    @property
    def version(self) -> Version:
        """The published version. Raises: RootError before a clean exit."""
        if self._version is None:
            raise RootError(
                f"nothing of {self.dataset!r} was published by this writer (yet): the `with` block must end cleanly",
                what="version",
                where=self.dataset,
            )
        return self._version

    def __enter__(self) -> "Writer":
        self._txn = self._root.begin(self.dataset)
        self._heartbeat = self._root.heartbeat(self._txn).start()
        self._spill = Spill()
        return self

    def add(
        self,
        key: str,
        fields: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one sample.

        Args:
            key: Key of the sample.
            fields: Name -> bytes, or a value encoded according to the extension: cls int, txt str, json object, npy
                array.
            metadata: Column -> value to filter on.
            source: Provenance (`columns.SOURCE_COLUMNS`).

        Raises: InvalidKey, InvalidField, DuplicateKey, FieldMismatch, FieldTooLarge.
        """
        if self._spill is None:
            raise RootError(
                "writer.add outside its `with` block; use: with root.write(...) as writer",
                what="add",
                where=self.dataset,
                given=key,
            )
        sample = make_sample(key, fields, metadata, source)
        names = frozenset(sample.fields)
        if self._first is None:
            self._first = (key, names)
        first_key, first_names = self._first
        # Now, not when the parts are written: the caller's traceback then shows the sample that deviates.
        if names != first_names:
            # One group without a name: the groups are chosen later.
            raise field_mismatch_error(
                key,
                {"": sorted(names)},
                {"": sorted(first_names)},
                f"sample {first_key!r}",
            )
        self._spill.add(sample)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._spill is not None
        spill = self._spill
        self._spill = None  # from here on `add` raises
        try:
            if error is None:
                self._version = self._publish(spill)
        except BaseException as failure:
            error = failure
            raise
        finally:
            # The heartbeat ends before the abort. If the abort fails, the collector must see a dead transaction.
            spill.close()
            self._heartbeat.close()
            if error is not None:
                abort_failed(self._root, self._txn, error)

    def _publish(self, spill: Spill) -> Version:
        if not spill.n_samples:
            raise EmptyVersion(
                f"no sample was added to {self.dataset!r}; a version needs at least one",
                what="samples",
                where=self.dataset,
                given=0,
                accepted="at least 1",
            )
        # A crash before `publish` leaves parts that no version names. The collector deletes them.
        parts = list(self._parts(spill))
        return self._root.publish(
            self.dataset,
            parts,
            producer=self._producer,
            facts=self._facts,
        )

    def _parts(self, spill: Spill) -> Iterator[Part]:
        attempt = secrets.token_hex(8)
        n_parts = 0
        writer: PartWriter | None = None
        try:
            for sample in spill.drain():
                if writer is None:
                    writer = self._part_writer(attempt, f"{n_parts:05d}")
                    n_parts += 1
                writer.add(sample)
                # After the sample: a part may exceed the limit by one sample, and no part is empty.
                is_full = writer.nbytes >= self._shard_bytes or writer.n_rows == self._part_samples
                if is_full:
                    yield writer.finish()
                    writer = None
            if writer is not None:
                yield writer.finish()
        finally:
            if writer is not None:
                writer.close()

    def _part_writer(self, attempt: str, name: str) -> PartWriter:
        return PartWriter(
            self._root.store,
            txn=self._txn,
            attempt=attempt,
            name=name,
            group_of=self._group_of,
        )
