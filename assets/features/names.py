"""Names of a featurizer's fields in a dataset, so that a field never changes its meaning.

    stages/<dataset>/generations/<featurizer>/<r>.json        code_version: the featurizer's; body.generation: 1, 2 ...

Its first published version uses the declared names, `mel.npy`; others add their generation, `mel.r2.npy`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import loader
from loader.dataset.commit import check_facts
from loader.storage import Store
from penstock.stages import StageRecord, current_record, current_records, read_record

from ..featurizers import Featurizer
from ..stages import GENERATIONS, PipelineStage


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureNames:
    group: str
    """Group of the fields."""
    fields: Mapping[str, str]
    """Declared name -> stored name."""
    generation: int = 1
    """Generation; 1 uses the declared names."""


def names_in(featurizer: Featurizer, generation: int) -> FeatureNames:
    declared = sorted({field for fields in featurizer.outputs.values() for field in fields})
    if generation == 1:
        return FeatureNames(group=featurizer.name, fields={field: field for field in declared})
    word = f"r{generation}"
    return FeatureNames(
        group=f"{featurizer.name}_{word}",
        fields={field: with_generation(field, word) for field in declared},
        generation=generation,
    )


def with_generation(field: str, word: str) -> str:
    """Return 'mel.npy' as 'mel.r2.npy'. The last word still selects the decoder."""
    stem, dot, last = field.rpartition(".")
    return f"{stem}.{word}.{last}" if dot else f"{word}.{field}"


def described(featurizer: Featurizer, names: FeatureNames) -> dict[str, Any]:
    """Return a featurizer's facts for its record."""
    identity = {"featurizer": featurizer.name, "version": featurizer.version, "fields": dict(names.fields)}
    return {**identity, "facts": stored_facts(featurizer, names)}


def stored_facts(featurizer: Featurizer, names: FeatureNames) -> dict[str, dict[str, Any]]:
    """Return stored field -> facts. Raises: InvalidSample for facts that no version accepts."""
    return check_facts({names.fields[field]: facts for field, facts in featurizer.facts.items()})


def names_of(
    root: loader.Root, dataset: str, stage: str, featurizer: Featurizer, partition: str
) -> FeatureNames:
    """Return the names of a featurizer's fields for a batch. A version new to the dataset gets its own.

    Costs up to three requests per generation, and a GET per batch for a new version. Names are reused if no other
    batch's record and no group in the newest version uses them.
    """
    if not any(featurizer.outputs.values()):
        return names_in(featurizer, 1)
    known = _generation_of(_records(root.store, dataset, featurizer.name), featurizer.version)
    if known is None:
        _claim(root, dataset, stage, featurizer, partition)
        known = _generation_of(_records(root.store, dataset, featurizer.name), featurizer.version)
    assert known is not None, "claimed above"
    return names_in(featurizer, known)


def _records(store: Store, dataset: str, featurizer: str) -> Iterator[StageRecord]:
    newest = current_record(store, dataset, GENERATIONS, featurizer)
    folder = newest.path.rpartition("/")[0] if newest else ""
    for r in range(1, newest.r if newest else 1):
        yield read_record(store, f"{folder}/{r:012d}.json")
    if newest is not None:
        yield newest


def _owners(records: Iterable[StageRecord]) -> dict[int, str]:
    return {int(record.body["generation"]): record.code_version for record in records}


def _generation_of(records: Iterable[StageRecord], version: str) -> int | None:
    return next((number for number, owner in _owners(records).items() if owner == version), None)


def _claim(root: loader.Root, dataset: str, stage: str, featurizer: Featurizer, partition: str) -> None:
    owners = _owners(_records(root.store, dataset, featurizer.name))
    used = [
        str(record.body["version"])
        for name, record in current_records(root.store, dataset, stage).items()
        if record.verdict == "published" and name != partition
    ]
    others = sorted(set(used) - {featurizer.version}, key=used.count)
    if not owners and others:  # records older than generations: the version with most batches came first
        owners[1] = others[-1]
        _append(root.store, dataset, featurizer.name, owners[1], 1)
    newest = max(owners, default=0)
    is_taken = newest and (owners[newest] in others or _is_published(root, dataset, featurizer, newest))
    number = newest + 1 if is_taken else max(newest, 1)
    _append(root.store, dataset, featurizer.name, featurizer.version, number)


def _is_published(root: loader.Root, dataset: str, featurizer: Featurizer, generation: int) -> bool:
    newest = root.state.newest(dataset)
    groups = root.open(newest.id).manifest["groups"] if newest else {}
    return names_in(featurizer, generation).group in groups


def _append(store: Store, dataset: str, featurizer: str, version: str, generation: int) -> None:
    stage = PipelineStage(store, dataset, GENERATIONS, featurizer, run_id="", code_version=version)
    stage.append(fingerprint="", body={"generation": generation})
