"""Fuzzing of indexes and maps: damaged and forged ones show no other sample, and are mended."""

from pathlib import Path

import pytest

from fuzz.campaign import campaign
from fuzz.index_case import IndexCase, derived_objects, run_index_case, write_indexed
from loader.dataset.search.segment_reads import coverage
from penstock.search import missing_parts
from tests.servers.patience import PATIENCE_S


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_indexed(tmp_path_factory.mktemp("indexes")))


def cases(folder: str, numbers: range) -> list[IndexCase]:
    return [IndexCase(number=number, seed=7, folder=folder) for number in numbers]


def test_cases_damage_and_forge_every_kind_of_object(folder: str) -> None:
    endings = {path.partition(".")[2] for path in derived_objects(Path(folder, "indexed"))}
    assert endings == {"json", "codes.parquet", "texts.parquet", "parquet"}
    drawn = [case.build() for case in cases(folder, range(60))]
    assert {path.partition(".")[2] for path, _, done in drawn if done == ("forged",)} == endings - {"json"}
    assert {path.partition(".")[2] for path, _, done in drawn if done != ("forged",)} == endings


def test_six_cases(folder: str) -> None:
    tally = campaign(cases(folder, range(6)), workers=1, timeout_s=PATIENCE_S, run=run_index_case)
    assert (tally.broken, tally.contained, tally.n_cases) == ([], [], 6)


@pytest.mark.server
def test_two_hundred_cases(folder: str) -> None:
    tally = campaign(cases(folder, range(100, 300)), workers=None, timeout_s=PATIENCE_S, run=run_index_case)
    assert tally.broken == []


class BodyDamage(IndexCase):
    """Zeros in the pages of a segment of codes, whose footer stays."""

    def build(self) -> tuple[str, bytes, tuple[str, ...]]:
        objects = derived_objects(Path(self.folder, "indexed"))
        path = min(path for path in objects if path.endswith(".codes.parquet"))
        data = objects[path]
        return path, data[:60] + bytes(40) + data[100:], ("zeros",)


def test_damage_that_no_maker_mends_is_told(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = BodyDamage(number=0, seed=7, folder=folder)
    assert run_index_case(case).broken == []
    monkeypatch.setattr(missing_parts, "check_coverage", coverage)
    (broken,) = run_index_case(case).broken
    assert broken.startswith("still damaged after it was made again")
