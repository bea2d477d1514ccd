"""The datasets of this repository: one file and one line each. For others, see `own_datasets`."""

from importlib import import_module

from assets.spec import DatasetSpec

DATASETS = {
    "demo": "dagster_project.datasets.demo:SPEC",
}


def specs() -> list[DatasetSpec]:
    """Return every registered dataset. Raises: ImportError, AttributeError for an invalid line."""
    loaded = []
    for target in DATASETS.values():
        module, _, attribute = target.partition(":")
        loaded.append(getattr(import_module(module), attribute))
    return loaded
