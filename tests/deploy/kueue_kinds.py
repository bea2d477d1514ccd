"""Fields of Kueue's v1beta2 that deploy/ uses, as its API types have them: no package publishes models."""

import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([KMGTPE]i|[mkMGTPE])?")
LABEL = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9][-A-Za-z0-9_.]*")


def is_name(value: Any) -> bool:
    return isinstance(value, str) and NAME.fullmatch(value) is not None and len(value) <= 253


def is_quantity(value: Any) -> bool:
    return type(value) in (int, str) and QUANTITY.fullmatch(str(value)) is not None


def is_label(value: Any) -> bool:
    return isinstance(value, str) and LABEL.fullmatch(value) is not None and len(value) <= 316


def is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 2048


def is_int32(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**31


def is_labels(value: Any) -> bool:
    return isinstance(value, dict) and all(
        is_label(key) and isinstance(text, str) for key, text in value.items()
    )


def value_check(*accepted: str) -> Check:
    return lambda value: value in accepted


PREEMPTION = {
    "reclaimWithinCohort": value_check("Never", "LowerPriority", "Any"),
    "withinClusterQueue": value_check("Never", "LowerPriority", "LowerOrNewerEqualPriority"),
    "borrowWithinCohort": {"policy": value_check("Never", "LowerPriority"), "maxPriorityThreshold": is_int32},
}
QUOTA = {
    "name": is_label,
    "nominalQuota": is_quantity,
    "borrowingLimit": is_quantity,
    "lendingLimit": is_quantity,
}
GROUP = {"coveredResources": [is_label], "flavors": [{"name": is_name, "resources": [QUOTA]}]}
SPECS: Mapping[str, Mapping[str, Any]] = {
    "Topology": {"levels": [{"nodeLabel": is_label}]},
    "ResourceFlavor": {
        "nodeLabels": is_labels,
        "nodeTaints": [
            {
                "key": is_label,
                "value": is_text,
                "effect": value_check("NoSchedule", "PreferNoSchedule", "NoExecute"),
            }
        ],
        "tolerations": [
            {
                "key": is_label,
                "operator": value_check("Equal", "Exists"),
                "value": is_text,
                "effect": value_check("NoSchedule", "PreferNoSchedule", "NoExecute"),
            }
        ],
        "topologyName": is_name,
    },
    "ClusterQueue": {
        "cohortName": is_name,
        "namespaceSelector": {"matchLabels": is_labels},
        "queueingStrategy": value_check("StrictFIFO", "BestEffortFIFO"),
        "preemption": PREEMPTION,
        "resourceGroups": [GROUP],
        "stopPolicy": value_check("None", "Hold", "HoldAndDrain"),
    },
    "LocalQueue": {"clusterQueue": is_name, "stopPolicy": value_check("None", "Hold", "HoldAndDrain")},
}
NAMESPACED = ("LocalQueue",)


def schema_errors(body: Mapping[str, Any]) -> list[str]:
    """Return what Kueue's schema refuses in an object."""
    kind = body["kind"]
    known = {
        "apiVersion": value_check("kueue.x-k8s.io/v1beta2"),
        "kind": is_text,
        "metadata": {"name": is_name},
    }
    if kind in NAMESPACED:
        known["metadata"]["namespace"] = is_name  # type: ignore[index]
    if kind == "WorkloadPriorityClass":
        known |= {"value": is_int32, "description": is_text}
    else:
        known["spec"] = SPECS[kind]  # type: ignore[assignment]
    return [*_wrong(body, known, kind), *_rules(kind, body.get("spec", {}))]


def _wrong(value: Any, known: Any, path: str) -> list[str]:
    if callable(known):
        return [] if known(value) else [f"{path} = {value!r}"]
    if isinstance(known, list):
        if not isinstance(value, list) or not value:
            return [f"{path} = {value!r} is not a list"]
        return [one for n, item in enumerate(value) for one in _wrong(item, known[0], f"{path}[{n}]")]
    if not isinstance(value, dict):
        return [f"{path} = {value!r} is not an object"]
    return [
        one
        for name, item in value.items()
        for one in (
            _wrong(item, known[name], f"{path}.{name}") if name in known else [f"{path}.{name} is unknown"]
        )
    ]


def _rules(kind: str, spec: Mapping[str, Any]) -> list[str]:
    """Return which of the kind's rules between fields are broken."""
    broken = []
    if kind == "ResourceFlavor" and "topologyName" in spec and not spec.get("nodeLabels"):
        broken.append("topologyName needs nodeLabels")
    if any(one.get("operator") == "Exists" and "value" in one for one in spec.get("tolerations", [])):
        broken.append("a toleration by Exists has no value")
    for group in spec.get("resourceGroups", []):
        for flavor in group["flavors"]:
            if [one["name"] for one in flavor["resources"]] != group["coveredResources"]:
                broken.append(
                    f"{flavor['name']} lists other resources than coveredResources, or in another order"
                )
            if "cohortName" not in spec and any("borrowingLimit" in one for one in flavor["resources"]):
                broken.append("borrowingLimit needs cohortName")
    preemption = spec.get("preemption", {})
    if preemption.get("reclaimWithinCohort", "Never") == "Never" and (
        preemption.get("borrowWithinCohort", {}).get("policy", "Never") != "Never"
    ):
        broken.append("borrowWithinCohort needs reclaimWithinCohort")
    return broken
