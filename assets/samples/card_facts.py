"""Facts that a batch writes down for the dataset card: how its objects were cut, its features and its filters."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.stages import StageRecord

from ..spec import DatasetSpec, Filter


def filter_words(one: Filter) -> str:
    """Return 'luma_mean_ratio at least 0.05 and at most 0.9, unknown not allowed'."""
    bounds = []
    if one.minimum is not None:
        bounds.append(f"at least {one.minimum}")
    if one.maximum is not None:
        bounds.append(f"at most {one.maximum}")
    if one.allowed is not None:
        bounds.append(f"one of {', '.join(sorted(map(str, one.allowed)))}")
    said = f"{one.column} {' and '.join(bounds)}".rstrip()
    return f"{said}, unknown not allowed" if one.required else said


def made_of(
    spec: DatasetSpec,
    units: StageRecord,
    features: Sequence[StageRecord],
    objects: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return a card's facts of a batch's making, for the record of its samples: plain JSON without floats.

    - policy: kind -> how it was cut
    - features: name, version and parameters of the featurizers that took samples of the batch
    - filters: in words
    - refused: [outcome, stage, code, objects] of objects that gave no sample
    """
    parameters = {feature.build().name: feature.parameters for feature in spec.features}
    refused = Counter(
        (str(row["outcome"]), str(row["stage"]), str(row["code"]))
        for row in objects
        if row["outcome"] != "used"
    )
    return {
        "policy": dict(units.body.get("policy", {})),
        "features": [
            {
                "name": record.body["featurizer"],
                "version": record.body["version"],
                "parameters": {
                    name: str(value) for name, value in parameters.get(record.body["featurizer"], {}).items()
                },
            }
            for record in features
            if record.counts.get("samples")
        ],
        "filters": [filter_words(one) for one in spec.filters],
        "refused": [[*names, n] for names, n in sorted(refused.items())],
    }
