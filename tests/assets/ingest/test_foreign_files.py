"""A worker that a file took over may name any file as one of its units: none is read that it did not make itself."""

import os
from pathlib import Path

import pytest

import loader
from assets.ingest import cut_work
from assets.ingest.cut import cut_objects
from assets.media.objects import CutRequest, CutResult
from assets.media.unit import Unit
from assets.spec import DatasetSpec
from loader.storage import open_store
from tests.assets.ingest.landed import open_batch


def naming(request: CutRequest) -> CutResult:
    """What `request.mime` says: a file of its own, or one that is not."""
    folder, secret = Path(request.scratch), Path(request.key)
    file = folder / "unit.txt"
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
    return CutResult(key=request.key, kind="text", units=(Unit(fields={"txt": file}, metadata={}),))


@pytest.mark.parametrize("how", ["own", "link", "hard link", "elsewhere", "above"])
def test_unit_is_a_file_that_its_worker_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(cut_work, "cut_object", naming)
    secret = tmp_path / "secret"
    secret.write_bytes(b"a key")
    row = {"key": str(secret), "sha256": "0" * 64, "mime": how, "kind": "text"}
    root = open_store(str(tmp_path / "root"))
    batch = open_batch(loader.Root(str(tmp_path / "root")), root, DatasetSpec(name="demo"), [row])
    cut = cut_objects(batch, [row], labels=[])
    assert len(cut.rows) == len(cut.parts) == (how == "own")
    assert [one["code"] for one in cut.refusals] == ([] if how == "own" else ["foreign_file"])
    assert not any(b"a key" in root.get(info.key).data for info in root.list("data/"))
