"""Records of indexed fields: `search/<how>/how.json`, created once by the first `penstock index`.

`<how>` is the start of the sha256 of dataset, field, network, numbers and code: each index of a field
has the same folder. The first index decides the ranges, so that later segments have comparable codes.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import Corrupt, FieldNotFound, FormatTooNew, ObjectNotFound
from ...json_text import integer_member, parse_json_object, text_member
from ...storage import Store
from ...storage.requests import retry_corrupt
from ..log.entries import DAMAGED, canonical, check_record_format
from ..names import check_dataset_name
from .field_texts import LINE_FIELDS, TASK_FIELD, is_text_field

if TYPE_CHECKING:
    from ..reading.sample_places import VersionData

FORMAT = 1
FOLDER = "search/"
TEXTS = 0
"""Code number of texts, which have no ranges."""
SQ8 = 1
"""Code number of one byte per number: its place in 255 equal steps of the number's range."""
MOST_NUMBERS = 65_536
_WEIGHTS = "weights_sha256"
_SIMILAR = ("embedding", "appearance")
"""Field names without `.npy` that are searched if no field is named, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRecord:
    """One indexed field of a dataset."""

    dataset: str
    """Dataset name."""
    field: str
    """Field of the versions, such as `embedding.npy`."""
    network: str
    """SHA-256 (hex) of the weights that made the field, as its facts state it; "" if they do not."""
    code: int
    """SQ8 or TEXTS."""
    numbers: int
    """Numbers of an embedding; 0 for texts."""
    low: tuple[float, ...] = dataclasses.field(default=(), repr=False)
    """Smallest value of each number, of embeddings of length 1."""
    high: tuple[float, ...] = dataclasses.field(default=(), repr=False)
    """Largest value of each number."""
    version: str = dataclasses.field(default="", compare=False)
    """ID of the version whose embeddings decided the ranges; "" for texts, and for records of earlier releases."""

    @property
    def name(self) -> str:
        identity = canonical([self.dataset, self.field, self.network, self.numbers, self.code])
        return hashlib.sha256(identity).hexdigest()[:16]

    @property
    def folder(self) -> str:
        """Folder of its segments in the root."""
        return f"{FOLDER}{self.name}/"

    @property
    def path(self) -> str:
        return f"{self.folder}how.json"

    def to_bytes(self) -> bytes:
        body = {
            "format": FORMAT,
            "dataset": self.dataset,
            "field": self.field,
            "network": self.network,
            "code": self.code,
            "numbers": self.numbers,
            "low": list(self.low),
            "high": list(self.high),
        }
        if self.version:
            body["version"] = self.version
        # No canonical JSON, which has no fractions.
        return json.dumps(body, allow_nan=False).encode()

    @property
    def ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """(low, high), float32 [numbers] each."""
        low = np.array(self.low, np.float32)
        high = np.array(self.high, np.float32)
        return low, high


def field_index_record(
    version: "VersionData",
    field_name: str,
    code: int,
    numbers: int = 0,
) -> IndexRecord:
    """Return the record of a version's field, without ranges."""
    facts = version.facts.get(field_name, {})
    network = facts.get(_WEIGHTS, "")
    return IndexRecord(
        dataset=version.dataset,
        field=field_name,
        network=str(network),
        code=code,
        numbers=numbers,
    )


def read_index_record(store: Store, record: IndexRecord) -> IndexRecord | None:
    """Return the stored record, with ranges; None before the first index. Raises: Corrupt; FormatTooNew."""

    def read() -> IndexRecord:
        stored = store.get(record.path)
        return parse_index_record(stored.data, record.path)

    try:
        return retry_corrupt(read)
    except ObjectNotFound:
        return None


def parse_index_record(data: bytes, path: str) -> IndexRecord:
    """Return the record in a file. Raises: FormatTooNew; Corrupt."""
    try:
        body = parse_json_object(data)
        check_record_format(integer_member(body, "format", 1, 2**31), FORMAT, path)
        record = IndexRecord(
            dataset=check_dataset_name(text_member(body, "dataset")),
            field=text_member(body, "field"),
            network=text_member(body, "network"),
            code=integer_member(body, "code", TEXTS, SQ8),
            numbers=integer_member(body, "numbers", 0, MOST_NUMBERS),
            low=_numbers(body, "low"),
            high=_numbers(body, "high"),
            version=text_member(body, "version") if "version" in body else "",
        )
        _check(record, path)
    except FormatTooNew:
        raise
    except DAMAGED as error:
        raise Corrupt(
            f"{path} is not a record of an index ({error}); delete it with its segments, and run penstock index again",
            what="record of an index",
            where=path,
            given=str(error),
        ) from error
    return record


def _check(record: IndexRecord, path: str) -> None:
    """Raise ValueError unless the record agrees with its path, and its ranges with its numbers."""
    if record.path != path:
        raise ValueError(f"it names itself {record.path}: it was copied or changed")
    low, high = record.ranges
    is_finite = bool(np.isfinite(low).all() and np.isfinite(high).all())
    if len(low) != record.numbers or len(high) != record.numbers:
        raise ValueError(f"{len(low)} and {len(high)} ends of ranges for {record.numbers} numbers")
    if not is_finite or not (low < high).all():
        raise ValueError("a range is empty or not finite")
    if record.code == SQ8 and not record.numbers:
        raise ValueError("codes of no numbers")


def _numbers(body: dict[str, Any], name: str) -> tuple[float, ...]:
    values = body[name]
    if not isinstance(values, list) or len(values) > MOST_NUMBERS:
        raise TypeError(f"{name} is not a list of numbers")
    numbers = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} has {value!r:.80}, which is not a number")
        numbers.append(float(value))
    return tuple(numbers)


def default_embedding(fields: Iterable[str]) -> str | None:
    """Return the first field named like an embedding (`_SIMILAR`), which is compared by default; None without one."""
    fields = tuple(fields)
    for ending in _SIMILAR:
        for name in fields:
            if name.endswith(f"{ending}.npy"):
                return name
    return None


def similarity_field(version: "VersionData", field_name: str | None) -> str:
    """Return the field to compare: the named one, or the version's embedding. Raises: FieldNotFound."""
    if field_name is not None:
        version.group_of(field_name)
        return field_name
    similar = default_embedding(version.fields)
    if similar is not None:
        return similar
    arrays = [name for name in version.fields if name.endswith(".npy")]
    listed = ", ".join(arrays) or "none"
    raise FieldNotFound(
        f"{version.name} has no field embedding.npy or appearance.npy to compare; its arrays are {listed}. Name one "
        "with field=, or add the featurizer `appearance` to the dataset",
        what="field",
        where=version.name,
        given=field_name,
        accepted=["embedding.npy", "appearance.npy"],
    )


def text_fields(version: "VersionData", field_name: str | None) -> tuple[str, ...]:
    """Return the text fields whose words are searched: the named one, or all. Raises: FieldNotFound."""
    texts = tuple(name for name in version.fields if is_text_field(name))
    if field_name is None and texts:
        return texts
    if field_name is not None and field_name in texts:
        return (field_name,)
    listed = ", ".join(texts) or "none"
    if field_name is not None:
        version.group_of(field_name)
        raise FieldNotFound(f"{field_name!r} of {version.name} is not text; its text fields are {listed}")
    others = ", ".join((*LINE_FIELDS, TASK_FIELD))
    raise FieldNotFound(
        f"{version.name} has no text field (.txt) and no {others} to search for words",
        what="text field",
        where=version.name,
        given="none",
    )
