"""The examples of docs/extending.md work as they stand."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader.errors import DecodeFailed, InvalidField

TEXT = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()


def example(name: str) -> dict[str, Any]:
    """What the example's module defines."""
    (code,) = re.findall(rf"```python {name}\n(.*?)```", TEXT, re.S)
    names: dict[str, Any] = {"__name__": f"example_{name}"}
    exec(compile(code, f"docs/extending.md: {name}", "exec"), names)
    return names


def test_the_dataset_is_a_whole_set_of_assets() -> None:
    from dagster_project.definitions import build_defs

    spec = example("dataset")["SPEC"]
    keys = {key.to_user_string() for key in build_defs(datasets=[spec]).resolve_all_asset_keys()}
    assert keys == {
        f"portraits/{stage}"
        for stage in (
            "raw_objects",
            "media",
            "units",
            "feature_picture",
            "feature_phash",
            "samples",
            "version",
        )
    }


def test_the_dataset_s_own_check_runs() -> None:
    import polars as pl

    check = example("dataset")["known_licences"]
    table = pl.DataFrame({"licence": ["CC0", "CC-BY-4.0"]})
    assert check(table, None).passed
    assert not check(pl.DataFrame({"licence": ["CC0", "unknown"]}), None).passed


def test_the_modality_reads_what_it_writes() -> None:
    module = example("modality")
    points = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert np.array_equal(module["decode"](module["encode"]("a.xyz", points)), points)
    with pytest.raises(DecodeFailed, match="13 bytes are not whole points"):
        module["decode"](b"x" * 13)
    with pytest.raises(InvalidField, match="got shape"):
        module["encode"]("a.xyz", np.zeros(3))
