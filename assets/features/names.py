"""Names of a featurizer's fields in a dataset, so that a field never changes its meaning.

    stages/<dataset>/generations/<featurizer>/<r>.json        code_version: the featurizer's; body.generation: 1, 2 ...

Its first published version uses the declared names, `mel.npy`; others add their generation, `mel.r2.npy`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import loader
from loader.dataset.publishing.commit import check_facts
from loader.storage import Store
from penstock.stages import StageRecord, current_record, current_records, read_record

from ..featurizers import Featurizer
from ..pipeline.stages import GENERATIONS, PipelineStage


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureNames:
    group: str
    """Group of the fields."""
    fields: Mapping[str, str]
    """Declared name -> stored name."""
    generation: int = 1
    """Generation; 1 uses the declared names."""


def generation_names(featurizer: Featurizer, generation: int) -> FeatureNames:
    declared = sorted(set().union(*featurizer.outputs.values()))
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
    if not dot:
        return f"{word}.{field}"
    return f"{stem}.{word}.{last}"


def featurizer_facts(featurizer: Featurizer, names: FeatureNames) -> dict[str, Any]:
    """Return a featurizer's facts for its record."""
    return {
        "featurizer": featurizer.name,
        "version": featurizer.version,
        "fields": dict(names.fields),
        "facts": stored_facts(featurizer, names),
    }


def stored_facts(featurizer: Featurizer, names: FeatureNames) -> dict[str, dict[str, Any]]:
    """Return stored field -> facts. Raises: InvalidSample for facts that no version accepts."""
    return check_facts({names.fields[field]: facts for field, facts in featurizer.facts.items()})


def batch_feature_names(
    root: loader.Root,
    dataset: str,
    stage: str,
    featurizer: Featurizer,
    partition: str,
) -> FeatureNames:
    """Return the names of a featurizer's fields for a batch. A version new to the dataset gets its own.

    Costs up to three requests per generation, and a GET per batch for a new version. Names are reused if no other
    batch's record and no group in the newest version uses them.
    """
    # Columns have no generations: a new value replaces the old one in the samples table.
    if not any(featurizer.outputs.values()):
        return generation_names(featurizer, 1)
    generation = _generation(root.store, dataset, featurizer)
    if generation is None:
        # Batches run at once, and two may claim. The records decide, so both read them again.
        _claim(root, dataset, stage, featurizer, partition)
        generation = _generation(root.store, dataset, featurizer)
    assert generation is not None, "claimed above"
    return generation_names(featurizer, generation)


def _records(store: Store, dataset: str, featurizer: str) -> Iterator[StageRecord]:
    newest = current_record(store, dataset, GENERATIONS, featurizer)
    if newest is None:
        return
    folder = newest.path.rpartition("/")[0]
    for number in range(1, newest.r):
        yield read_record(store, f"{folder}/{number:012d}.json")
    yield newest


def _owners(records: Iterable[StageRecord]) -> dict[int, str]:
    """Return generation -> version of the featurizer that writes it."""
    # A later record of a generation wins: its first owner published nothing under it.
    return {int(record.body["generation"]): record.code_version for record in records}


def _generation(store: Store, dataset: str, featurizer: Featurizer) -> int | None:
    """Return the generation of a featurizer's version; None before its first."""
    owners = _owners(_records(store, dataset, featurizer.name))
    for generation, owner in owners.items():
        if owner == featurizer.version:
            return generation
    return None


def _claim(
    root: loader.Root,
    dataset: str,
    stage: str,
    featurizer: Featurizer,
    partition: str,
) -> None:
    owners = _owners(_records(root.store, dataset, featurizer.name))
    published = []
    for name, record in current_records(root.store, dataset, stage).items():
        if record.verdict == "published" and name != partition:
            published.append(str(record.body["version"]))
    # Ascending: the version of the most batches is the last.
    others = sorted(set(published) - {featurizer.version}, key=published.count)
    if not owners and others:
        # Records older than generations: the version of most batches has the first one.
        owners[1] = others[-1]
        _append(root.store, dataset, featurizer.name, owners[1], 1)
    if not owners:
        generation = 1
    else:
        generation = max(owners)
        is_taken = owners[generation] in others or _is_published(root, dataset, featurizer, generation)
        if is_taken:
            generation += 1
    _append(root.store, dataset, featurizer.name, featurizer.version, generation)


def _is_published(
    root: loader.Root,
    dataset: str,
    featurizer: Featurizer,
    generation: int,
) -> bool:
    newest = root.state.newest(dataset)
    if newest:
        groups = root.open(newest.id).manifest["groups"]
    else:
        groups = {}
    return generation_names(featurizer, generation).group in groups


def _append(
    store: Store,
    dataset: str,
    featurizer: str,
    version: str,
    generation: int,
) -> None:
    stage = PipelineStage(store, dataset, GENERATIONS, featurizer, run_id="", code_version=version)
    stage.append(fingerprint="", body={"generation": generation})
