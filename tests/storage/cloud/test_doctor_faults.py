"""A store that stumbles is not a liar: what is tried again under the retry budget is not a finding of the doctor's."""

import pytest

from penstock.upkeep.doctor import store_probes
from penstock.upkeep.doctor.store_probes import Scratch, creates

FAULTS = [[503, "drop"] * 3, ["commit-drop"] * 3, ["commit-drop", 503, "reset"] * 3, [409], [412]]


@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: " ".join(map(str, faults)))
def test_creates_under_faults(faulty, faulty_store, faults):
    faulty.faults.extend(faults)
    found = list(creates(Scratch(faulty_store)))
    assert [(one.check, one.level) for one in found] == [("create-only", "ok"), ("creates at once", "ok")]


@pytest.mark.parametrize("fault", [503, "drop", "reset", "short"])
def test_contents_under_faults(faulty, faulty_store, fault, monkeypatch):
    monkeypatch.setattr(store_probes, "PARTS_BYTES", 2**20 + 1)
    scratch = Scratch(faulty_store)
    for probe in (store_probes.etags, store_probes.checksums):
        faulty.faults.extend([fault] * 3)
        assert {one.level for one in probe(scratch)} == {"ok"}
    assert not faulty.faults
