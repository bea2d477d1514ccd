"""Names of a featurizer's fields in a dataset: a field never changes its meaning.

The featurizer version that published first has the names that the featurizer declares: group `mel`, field `mel.npy`.
Every other version has names of its own, by its generation: group `mel_r2`, field `mel.r2.npy`. They are numbered in

    stages/<dataset>/generations/<featurizer>/<r>.json        code_version: the featurizer's; body.generation: 1, 2 ...

Of the records of one generation the last counts: a version that nothing was published of gives its names to the next.
Columns keep their names: other values of them are annotations, which each version of the dataset has its own of.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import loader
from loader.dataset.publishing.commit import check_facts
from loader.storage import Store
from penstock.stages import StageRecord, append_record, current_record, current_records, read_record

from ..featurizers import Featurizer
from ..stages import GENERATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Names of a featurizer's fields in a dataset."""

    group: str
    """Group of the fields."""
    fields: Mapping[str, str]
    """Declared name -> stored name."""
    generation: int = 1
    """Number of the generation; 1 for the names as declared."""


def names_in(featurizer: Featurizer, generation: int) -> Names:
    """Return the names of a generation."""
    declared = sorted({field for fields in featurizer.outputs.values() for field in fields})
    if generation == 1:
        return Names(group=featurizer.name, fields={field: field for field in declared})
    word = f"r{generation}"
    return Names(
        group=f"{featurizer.name}_{word}",
        fields={field: renamed(field, word) for field in declared},
        generation=generation,
    )


def renamed(field: str, word: str) -> str:
    """Return 'mel.npy' as 'mel.r2.npy': the last word still picks the decoder."""
    stem, dot, last = field.rpartition(".")
    return f"{stem}.{word}.{last}" if dot else f"{word}.{field}"


def described(featurizer: Featurizer, names: Names) -> dict[str, Any]:
    """Return the record's words of a featurizer. Raises: as `stored_facts`."""
    told = {"featurizer": featurizer.name, "version": featurizer.version, "fields": dict(names.fields)}
    return {**told, "facts": stored_facts(featurizer, names)}


def stored_facts(featurizer: Featurizer, names: Names) -> dict[str, dict[str, Any]]:
    """Return stored field -> facts of it. Raises: InvalidSample for facts that no version takes."""
    return check_facts({names.fields[field]: told for field, told in featurizer.facts.items()})


def names_of(root: loader.Root, dataset: str, stage: str, featurizer: Featurizer, partition: str) -> Names:
    """Return the names of the fields that a featurizer computes for a batch.

    A version that is new to the dataset is given its own. A known version costs two or three requests per generation. A
    new one costs a GET per batch as well: names are given on only where no other batch's record and no group of the
    newest version has them. Raises: Corrupt; StoreError.
    """
    if not any(featurizer.outputs.values()):
        return names_in(featurizer, 1)
    known = _generation_of(_records(root.store, dataset, featurizer.name), featurizer.version)
    if known is None:
        _claim(root, dataset, stage, featurizer, partition)
        known = _generation_of(_records(root.store, dataset, featurizer.name), featurizer.version)
    assert known is not None, "it was claimed just now"
    return names_in(featurizer, known)


def _records(store: Store, dataset: str, featurizer: str) -> Iterator[StageRecord]:
    newest = current_record(store, dataset, GENERATIONS, featurizer)
    folder = newest.path.rpartition("/")[0] if newest else ""
    for r in range(1, newest.r if newest else 1):
        yield read_record(store, f"{folder}/{r:012d}.json")
    if newest is not None:
        yield newest


def _owners(records: Iterable[StageRecord]) -> dict[int, str]:
    """Return generation -> the featurizer version that has it."""
    return {int(record.body["generation"]): record.code_version for record in records}


def _generation_of(records: Iterable[StageRecord], version: str) -> int | None:
    return next((number for number, owner in _owners(records).items() if owner == version), None)


def _claim(root: loader.Root, dataset: str, stage: str, featurizer: Featurizer, partition: str) -> None:
    """Append the generation of a version that has none."""
    owners = _owners(_records(root.store, dataset, featurizer.name))
    used = [
        str(record.body["version"])
        for name, record in current_records(root.store, dataset, stage).items()
        if record.verdict == "published" and name != partition
    ]
    others = sorted(set(used) - {featurizer.version}, key=used.count)
    if not owners and others:  # made before generations were written down: what most batches have was first
        owners[1] = others[-1]
        _append(root.store, dataset, featurizer.name, owners[1], 1)
    newest = max(owners, default=0)
    taken = newest and (owners[newest] in others or _is_published(root, dataset, featurizer, newest))
    number = newest + 1 if taken else max(newest, 1)
    _append(root.store, dataset, featurizer.name, featurizer.version, number)


def _is_published(root: loader.Root, dataset: str, featurizer: Featurizer, generation: int) -> bool:
    newest = root.state.newest(dataset)
    there = root.open(newest.id).manifest["groups"] if newest else {}
    return names_in(featurizer, generation).group in there


def _append(store: Store, dataset: str, featurizer: str, version: str, generation: int) -> None:
    record = StageRecord(
        dataset=dataset,
        stage=GENERATIONS,
        partition=featurizer,
        verdict="published",
        run_id="",
        code_version=version,
        fingerprint="",
        body={"generation": generation},
    )
    append_record(store, record)
