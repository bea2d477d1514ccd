"""Fuzzing of data sets in other formats: every format has a place, sound ones are taken, damage does no harm."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import loader
from fuzz import place_case
from fuzz.campaign import campaign
from fuzz.place_case import PlaceCase, run_place_case
from fuzz.places import PLACE_FORMATS, unwritten, write_places
from loader.storage import Store
from penstock.formats.run_import import ImportReport, import_place
from tests.servers.patience import PATIENCE_S


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    return tuple(map(str, write_places(tmp_path_factory.mktemp("places"))))


def cases(places: tuple[str, ...], numbers: range) -> list[PlaceCase]:
    return [PlaceCase(number=number, seed=7, places=places) for number in numbers]


def test_every_format_has_a_place() -> None:  # a sound one: tests/penstock/formats/test_registry.py
    assert unwritten() == set()


def test_case_of_every_format(places: tuple[str, ...]) -> None:
    tally = campaign(
        cases(places, range(len(PLACE_FORMATS))), workers=1, timeout_s=PATIENCE_S, run=run_place_case
    )
    assert (tally.broken, tally.contained, tally.n_cases) == ([], [], len(PLACE_FORMATS))


@pytest.mark.server
def test_three_hundred_cases(places: tuple[str, ...]) -> None:
    tally = campaign(cases(places, range(100, 400)), workers=None, timeout_s=PATIENCE_S, run=run_place_case)
    assert tally.broken == []
    assert {
        format for format in PLACE_FORMATS if not any(format in code for _, code in tally.counts)
    } == set()


def test_broken_promises_are_told(places: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(one for one in cases(places, range(300)) if one.build()[0].startswith("files/"))
    assert run_place_case(case).broken == []

    def erase(root: loader.Root, format: str, store: Store, dataset: str, **options: Any) -> ImportReport:
        done = import_place(root, format, store, dataset, **options)
        shutil.rmtree(Path(store.url))
        return done

    def refuse(root: loader.Root, format: str, store: Store, dataset: str, **options: Any) -> ImportReport:
        import_place(root, format, store, dataset, **options)
        return ImportReport(failures=[""])

    for fault, said in (
        (erase, ["imported, and not registered", "the place was written to"]),
        (refuse, ["has a version", "refused without a reason", "registered and read, and not imported"]),
    ):
        monkeypatch.setattr(place_case, "import_place", fault)
        found = run_place_case(case).broken
        assert [any(one in told for told in found) for one in said] == [True] * len(said), found
