"""docs/silent_bugs.md holds: every name in its table is one that the code stops under, every test is there."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from assets.media.audit import audit
from assets.media.unit import Unusable

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
ROWS = re.findall(
    r"^\| ([^|]+) \| `([a-z_]+)` \| (source|cut|version) \| `([^|]+)::(test_[a-z_0-9]+)` \|$",
    (REPOSITORY / "docs/silent_bugs.md").read_text(),
    re.MULTILINE,
)


def test_no_row_is_written_in_another_way() -> None:
    table = (
        (REPOSITORY / "docs/silent_bugs.md")
        .read_text()
        .split("| --- | --- | --- | --- |\n")[1]
        .partition("\n\n")[0]
    )
    assert len(ROWS) == len(table.splitlines()) > 30


@pytest.mark.parametrize(("bug", "name", "where", "file", "test"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_is_true(bug: str, name: str, where: str, file: str, test: str) -> None:
    code = "".join(path.read_text() for path in (REPOSITORY / "assets").rglob("*.py"))
    assert re.search(rf"\b{name}\b", code)
    assert f"def {test}(" in (HERE / file).read_text()


@pytest.mark.parametrize(("kind", "mime"), [("JPEG", "image/jpeg"), ("PNG", "image/png")])
def test_truncated_pictures_whatever_pillow_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mime: str
) -> None:
    """Many a library sets this switch for its whole process; grey halves then pass for pictures."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    sink = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(sink, kind)
    whole = tmp_path / "whole"
    whole.write_bytes(sink.getvalue())
    assert audit(str(whole), mime)["width_px"] == 64
    cut = tmp_path / "cut"
    cut.write_bytes(sink.getvalue()[: len(sink.getvalue()) // 2])
    with Image.open(cut) as picture:
        picture.load()  # Pillow has nothing to say
    with pytest.raises(Unusable) as refused:
        audit(str(cut), mime)
    assert (refused.value.outcome, refused.value.code) == ("rejected", "undecodable")
