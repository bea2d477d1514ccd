"""Registry of this repository's datasets, one file and line each; others: `own_datasets`."""

from importlib import import_module

from assets.spec import DatasetSpec

DATASETS = {
    "demo": "dagster_project.datasets.demo:SPEC",
}


def specs() -> list[DatasetSpec]:
    """Return the spec of every registered dataset. Raises: ImportError, AttributeError for an invalid line."""
    loaded = []
    for target in DATASETS.values():
        module, _, attribute = target.partition(":")
        loaded.append(getattr(import_module(module), attribute))
    return loaded
