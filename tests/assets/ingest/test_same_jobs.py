"""Two runs of a batch submit the same jobs: their units differ in nothing that counts."""

from dataclasses import replace
from typing import Any

import pytest

from assets.ingest.audit_work import AUDIT, AuditTask, SampleFormat
from assets.ingest.formats.copy_work import COPY, CopyTask
from assets.ingest.formats.read_work import READ, ReadTask
from assets.ingest.formats.sample_facts import IngestRules
from assets.media.policy import CutPolicy

TAKING = IngestRules(
    dataset="d",
    splits={"train": 1.0},
    split_by="object",
    has_folder_labels=False,
    format="webdataset",
    choices={},
    provenance={"run_id": "first", "partition": "b1"},
)


@pytest.mark.parametrize("work", [READ, COPY], ids=["read", "copy"])
def test_units_of_two_runs_are_alike_but_for_the_run(work: Any) -> None:
    given = {"landing": "l", "root": "r", "txn": "t", "limit_s": 1.0, "raws": [{"key": "a"}]}
    more = {READ.name: {"groups": {}}, COPY.name: {"number": 0, "run": 0, "groups": {}}}[work.name]
    kind = {READ.name: ReadTask, COPY.name: CopyTask}[work.name]
    one = kind(**given, **more, rules=TAKING)

    def with_provenance(**provenance: str) -> Any:
        return replace(one, rules=replace(TAKING, provenance={**TAKING.provenance, **provenance}))

    assert work.alike is not None
    assert work.alike(with_provenance(run_id="second")) == work.alike(one)
    assert work.alike(with_provenance(partition="b2")) != work.alike(one)
    assert work.alike(replace(one, txn="other")) != work.alike(one)


def test_audits_of_two_runs_are_alike_but_for_the_name_of_their_listing() -> None:
    held = SampleFormat(name="webdataset", choices={}, audit_id="drawn")
    media = AuditTask(
        landing="l", root="r", raw={}, policy=CutPolicy(), staging="", cost_s=1.0, limit_s=1.0, format=None
    )
    one = replace(media, format=held)
    assert AUDIT.alike is not None
    assert AUDIT.alike(replace(one, format=replace(held, audit_id="again"))) == AUDIT.alike(one)
    assert AUDIT.alike(replace(one, format=replace(held, name="tfrecord"))) != AUDIT.alike(one)
    assert AUDIT.alike(media) == media
