"""Names that two would use are refused before anything is computed."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import loader
from assets.featurizers import make
from assets.featurizers.featurizer import check_distinct_names, check_new_names
from assets.pipeline.tables import write_wide_table
from assets.samples.assembly import assemble
from assets.spec import DatasetSpec, Feature
from loader.errors import Conflict, InvalidName
from penstock.stages import StageRecord, Upstream
from tests.refusals import refusal

OTHER = '''
from dataclasses import dataclass
from typing import Any

from assets.featurizers import Features


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherScore:
    """Of photos and documents: whatever names it is told."""

    name: str = "other_score"
    field: str = "other.npy"
    column: str = "other_ratio"
    kinds = frozenset({"image", "text"})
    version = "1-00000000"
    inputs = {"image": ("jpg",), "text": ("txt",)}

    @property
    def outputs(self) -> Any:
        return dict.fromkeys(self.inputs, (self.field,))

    @property
    def columns(self) -> Any:
        return dict.fromkeys(self.inputs, (self.column,))

    def __call__(self, kind: str, sample: Any) -> Features:
        return Features(fields={self.field: b""}, columns={self.column: 0.5})
'''

UNITS = StageRecord(
    dataset="demo",
    stage="units",
    partition="b",
    verdict="published",
    run_id="run",
    code_version="1",
    fingerprint="",
    body={"parts": []},
)


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a featurizer outside the registry."""
    (tmp_path / "other_score.py").write_text(OTHER)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "other_score:OtherScore"


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        (
            {"column": "luma_mean_ratio"},
            {
                "what": "column 'luma_mean_ratio'",
                "given": ["featurizer 'picture'", "featurizer 'other_score'"],
            },
        ),
        (
            {"column": "n_tokens"},
            {"what": "column 'n_tokens'", "given": ["featurizer 'tokens'", "featurizer 'other_score'"]},
        ),
        (
            {"column": "refused"},
            {"what": "column 'refused'", "given": ["penstock itself", "featurizer 'other_score'"]},
        ),
        (
            {"field": "phash.npy"},
            {"what": "field 'phash.npy'", "given": ["featurizer 'phash'", "featurizer 'other_score'"]},
        ),
        (
            {"name": "picture"},
            {"what": "name 'picture'", "given": ["featurizer 'picture'", "featurizer 'picture'"]},
        ),
    ],
)
def test_dataset_with_two_owners_of_a_name_cannot_be_described(
    other: str, parameters: Mapping[str, str], fault: dict[str, object]
) -> None:
    features = (Feature(name="picture"), Feature(name="phash"), Feature(name="tokens"))
    DatasetSpec(name="demo", features=(*features, Feature(name=other)))
    with refusal(InvalidName, where="demo", **fault):
        DatasetSpec(name="demo", features=(*features, Feature(name=other, parameters=parameters)))


def test_name_that_is_no_path_segment_is_refused(other: str) -> None:
    with refusal(InvalidName, what="featurizer", where="demo", given="Other/Score"):
        check_distinct_names("demo", [make(other, name="Other/Score")])


def test_featurizer_has_one_stage_under_each_of_its_names(other: str) -> None:
    assert Feature(name=other).stage == "feature_other_score"
    assert Feature(name="picture").stage == "feature_picture"


@pytest.mark.parametrize(
    ("there", "fault"),
    [
        ({"groups": {"phash"}}, {"given": ["group 'phash'"]}),
        ({"fields": {"phash.npy"}}, {"given": ["field 'phash.npy'"]}),
        ({"columns": {"phash_flat"}}, {"given": ["column 'phash_flat'"]}),
    ],
)
def test_what_the_units_have_already_is_refused(there: Mapping[str, Any], fault: dict[str, object]) -> None:
    nothing: Mapping[str, Any] = dict.fromkeys(("groups", "fields", "columns"), frozenset())
    check_new_names(make("phash"), "image", **nothing)
    with refusal(Conflict, what="phash", where="image", **fault):
        check_new_names(make("phash"), "image", **{**nothing, **there})


def test_records_of_two_featurizers_with_one_column_are_not_merged(tmp_path: Path) -> None:
    """As stages may have published them before the dataset was described as it is now."""
    with loader.Root(tmp_path / "root") as root:
        root.create()

        def record(name: str, **score: float) -> StageRecord:
            rows = [{"key": "image/1", "code": "", "reason": "", **score}]
            table = write_wide_table(root.store, "demo", f"feature_{name}", "b", rows)
            return replace(
                UNITS,
                upstream=(Upstream(stage="units", partition="b", r=0),),
                stage=f"feature_{name}",
                body={"featurizer": name, "shards": []},
                files={f"feature_{name}": table},
            )

        one, other = record("one", score=1.0), record("other", score=2.0)
        spec = DatasetSpec(name="demo")
        empty: Mapping[str, Any] = {"landed": [], "refusals": [], "units": UNITS}
        assemble(
            root.store, spec, features=[one, replace(other, files=record("other", x=1.0).files)], **empty
        )
        with refusal(Conflict, what="score", given=["one", "other"]):
            assemble(root.store, spec, features=[one, other], **empty)
