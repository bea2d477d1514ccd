"""The field `members.json` of a stored sequence: the documents whose pieces it has.

    {"dataset": "docs", "documents": [[key, part, row, start], ...], "sources": {"subject": ["ann", null, ...]}}

start: offset of the piece's first token in its document. sources: the columns that takedowns name samples by, with a
value per piece. A takedown of a document finds its sequences here, even if no version has the document any more.
"""

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from loader import Root
from loader.dataset.writing.redact import shard_index
from loader.errors import Corrupt, ObjectNotFound
from loader.json_text import DamagedJson, canonical_json, parse_json_object
from loader.storage import Store

from ..denied.readable_versions import WholeVersions, read_whole_versions

MEMBERS = "members.json"
GROUP = "members"
"""Group of the field, so that trainings read none of it."""


class MemberDocument(NamedTuple):
    """A document's piece in a sequence."""

    key: str
    part: str
    """Id of the document's part."""
    row: int
    """Row in the part."""
    start: int
    """Offset of the piece's first token in the document."""


class SequenceMembers(NamedTuple):
    """A sequence and its documents."""

    key: str
    dataset: str
    """Dataset of the documents."""
    documents: frozenset[str]
    """Keys of the documents."""
    sources: Mapping[str, frozenset[str]]
    """Column that takedowns name samples by -> its values for the documents. Older releases stored none."""


def members_json(
    dataset: str,
    members: Iterable[MemberDocument],
    sources: Mapping[str, Sequence[str | None]],
) -> bytes:
    """Return the field. sources: column -> value of each member's document."""
    body: dict[str, Any] = {
        "dataset": dataset,
        "documents": [list(member) for member in members],
    }
    sources_with_values: dict[str, list[str | None]] = {}
    for name, values in sources.items():
        if any(values):
            sources_with_values[name] = list(values)
    if sources_with_values:
        body["sources"] = sources_with_values
    return canonical_json(body)


def version_members(root: Root, dataset: str) -> list[SequenceMembers]:
    """Return the members of all sequences that versions of a dataset have, excluded ones too, part by part.

    Redacted sequences are left out. Reads the shards of the group `members` whole, each once. Begins again if a
    collector deletes a version meanwhile.

    Raises: Corrupt; StoreError.
    """
    return read_whole_versions(root, dataset, lambda versions: list(_read_all(versions)))


def transaction_members(store: Store, txn: str) -> Iterator[SequenceMembers]:
    """Yield the members of the sequences that an open transaction has written so far."""
    for info in store.list(f"data/{txn}/"):
        name = info.key.rpartition("/")[2]
        is_of_group = name.startswith(f"{GROUP}-")
        if not is_of_group or not name.endswith(".tar"):
            continue
        try:
            data = store.get(info.key).data
        except ObjectNotFound:  # the transaction was aborted meanwhile
            continue
        url = f"{store.url}/{info.key}"
        with tarfile.open(fileobj=io.BytesIO(data)) as shard:
            for member in shard:
                key = member.name.removesuffix(f".{MEMBERS}")
                file = shard.extractfile(member)
                # Another dataset may have a group of this name.
                if file is not None and key != member.name:
                    text = file.read()
                    yield from _parse(url, key, text)


def _read_all(versions: WholeVersions) -> Iterator[SequenceMembers]:
    """Yield the members of the sequences of some versions. Versions share shards: each is read once."""
    paths: set[str] = set()
    for _, version in versions:
        if MEMBERS not in version.fields:
            continue
        for shard in version.parts.shard_rows().to_pylist():
            path = shard["path"]
            if shard["group"] != GROUP or path in paths:
                continue
            paths.add(path)
            # The shard has nothing but members, so it is read whole.
            keys, places = shard_index(version.store, shard)
            data = version.store.get(path).data
            yield from _parse_shard(
                f"{version.store.url}/{path}",
                data,
                keys,
                places[MEMBERS],
            )


def _parse_shard(
    url: str,
    data: bytes,
    keys: list[str],
    places: np.ndarray,
) -> Iterator[SequenceMembers]:
    """Yield the members of a shard's sequences, one for each row that is not redacted.

    url, data: of the shard. keys: of its rows. places: int64 [rows, 3], offset, bytes and CRC-32C.
    """
    for key, (offset, nbytes, _) in zip(keys, places.tolist(), strict=True):
        stop = offset + nbytes
        text = data[offset:stop]
        yield from _parse(url, key, text)


def _parse(url: str, key: str, text: bytes) -> Iterator[SequenceMembers]:
    """Yield the members of a sequence, unless they are redacted. Raises: Corrupt."""
    if not text.strip(b"\0"):  # a redaction writes zeros
        return
    try:
        body = parse_json_object(text)
        dataset = str(body["dataset"])
        keys = [str(document[0]) for document in body["documents"]]
        sources: dict[str, frozenset[str]] = {}
        stored_sources = body.get("sources", {})
        for name, values in stored_sources.items():
            texts = [str(value) for value in values if value is not None]
            sources[name] = frozenset(texts)
        documents = frozenset(keys)
        yield SequenceMembers(
            key,
            dataset,
            documents,
            sources,
        )
    except (AttributeError, DamagedJson, KeyError, TypeError, IndexError) as error:
        raise Corrupt(
            f"{url}: {MEMBERS} of sequence {key!r} is damaged ({error}); restore the shard from a mirror"
        ) from error
