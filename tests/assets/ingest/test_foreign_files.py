"""A worker that a file took over may name any file as one of its units: none is read that it did not make itself."""

import os
from pathlib import Path

import pytest

from assets.ingest import cut as cutting
from assets.ingest.cut import cut_objects
from assets.media.objects import CutRequest, CutResult
from assets.media.unit import Unit
from assets.spec import DatasetSpec
from loader.storage import open_store
from penstock.compute.pool import InlineCompute


def naming(request: CutRequest) -> CutResult:
    """What `request.mime` says: a file of its own, or one that is not."""
    folder, secret = Path(request.scratch), Path(request.key)
    folder.mkdir(parents=True)
    file = folder / "unit.jpg"
    match request.mime:
        case "own":
            file.write_bytes(b"made here")
        case "link":
            file.symlink_to(secret)
        case "hard link":
            os.link(secret, file)
        case "elsewhere":
            file = secret
        case "above":
            file = folder / ".." / secret.name
    return CutResult(key=request.key, kind="image", units=(Unit(fields={"jpg": file}, metadata={}),))


@pytest.mark.parametrize("how", ["own", "link", "hard link", "elsewhere", "above"])
def test_a_unit_is_a_file_that_its_worker_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(cutting, "cut_object", naming)
    secret = tmp_path / "secret"
    secret.write_bytes(b"a key")
    row = {"key": str(secret), "sha256": "0" * 64, "mime": how, "kind": "image"}
    landing, spec = open_store(str(tmp_path)), DatasetSpec(name="demo")
    raws = {row["key"]: row}
    units, refusals = cut_objects(landing, InlineCompute(), spec, [row], raws, tmp_path / "work", {})
    assert len(units) == (how == "own")
    assert [one["code"] for one in refusals] == ([] if how == "own" else ["foreign_file"])
