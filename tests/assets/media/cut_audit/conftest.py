"""One raw object through its audit, its cut and the audit of the cut, as a worker takes it through."""

from collections.abc import Callable
from pathlib import Path

import pytest

from assets.media.audit import audit, audit_units
from assets.media.cut_audit.findings import STAGE
from assets.media.cutters import ALL_KINDS, CUTTERS
from assets.media.policy import CutPolicy, ImagePolicy, VideoPolicy
from assets.media.sniff import HEAD_BYTES, sniff
from assets.media.unit import Unit, Unusable

POLICY = CutPolicy(
    image=ImagePolicy(short_side_px=64, deep="reduce"),
    video=VideoPolicy(short_side_px=64, clip_s=1.0, max_clips=3),
)


def cut_units(path: str, scratch: Path, policy: CutPolicy = POLICY) -> list[Unit]:
    scratch = scratch / "scratch"
    scratch.mkdir(exist_ok=True)
    with open(path, "rb") as file:
        row = audit(path, sniff(file.read(HEAD_BYTES)), ALL_KINDS)
    units = CUTTERS[row["kind"]].cut(path, scratch, policy)
    audit_units(path, row["kind"], units, row)
    return units


@pytest.fixture
def cut_and_audit(tmp_path: Path) -> Callable[..., list[Unit]]:
    def take(path: str, policy: CutPolicy = POLICY) -> list[Unit]:
        return cut_units(path, tmp_path, policy)

    return take


@pytest.fixture
def refusal_code(tmp_path: Path) -> Callable[..., str]:
    """The name under which the audit of the cut refuses a file; "" when it passes."""

    def take(path: str, policy: CutPolicy = POLICY) -> str:
        try:
            cut_units(path, tmp_path, policy)
        except Unusable as unusable:
            return unusable.code if unusable.stage == STAGE else f"not by this audit: {unusable}"
        return ""

    return take
