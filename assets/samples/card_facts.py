"""Provenance that a batch records for the dataset card."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.stages import StageRecord

from ..spec import DatasetSpec, Filter


def filter_words(rule: Filter) -> str:
    """Return a filter in words: 'luma_mean_ratio at least 0.05 and at most 0.9, unknown not allowed'."""
    bounds = []
    if rule.minimum is not None:
        bounds.append(f"at least {rule.minimum}")
    if rule.maximum is not None:
        bounds.append(f"at most {rule.maximum}")
    if rule.allowed is not None:
        bounds.append(f"one of {', '.join(sorted(map(str, rule.allowed)))}")
    text = f"{rule.column} {' and '.join(bounds)}".rstrip()
    return f"{text}, unknown not allowed" if rule.required else text


def made_of(
    spec: DatasetSpec,
    units: StageRecord,
    features: Sequence[StageRecord],
    objects: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the provenance of a batch, as plain JSON without floats.

    - policy: kind -> how it was cut
    - features: name, version and parameters of featurizers with samples
    - filters: in words
    - refused: [outcome, stage, code, objects] of objects without a sample
    """
    parameters = {feature.made().name: feature.parameters for feature in spec.features}
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
