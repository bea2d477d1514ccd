"""Every interleaving of the append protocol in a small world, and mutants of it that must be found out."""

import importlib
import sys
from pathlib import Path

import pytest

_HERE = str(Path(__file__).parent.parent)
sys.path.insert(0, _HERE)  # the model is a package beside this file; `prove.py` runs it without pytest
try:
    explore = importlib.import_module("logmodel.explore").explore
    scenarios = importlib.import_module("logmodel.scenarios")
    world = importlib.import_module("logmodel.world")
finally:
    sys.path.remove(_HERE)

SCENARIOS = {s.name: s for s in scenarios.scenarios()}


def test_no_interleaving_ends_badly(record_property):
    worlds = {name: explore(s, world.Rules()).worlds for name, s in SCENARIOS.items()}
    record_property("worlds", sum(worlds.values()))
    assert sum(worlds.values()) > 45_000, worlds  # a scenario that lost its branches proves nothing


@pytest.mark.parametrize(
    ("scenario", "ends"),
    [
        ("two publishers", ("appended 1", "appended 2")),
        ("two publishers", ("appended 2", "appended 1")),
        ("two publishers", ("crashed", "appended 1")),
        ("a zombie attempt", ("appended 1", "found 1")),
        ("publisher and a collector that wrongly aborts", ("Fenced", "appended ", "found ")),
        ("added group and added parts", ("appended 3", "appended 2")),
        ("one group twice", ("appended 2", "Conflict")),
        ("an alias there and back", ("appended 2", "found 1")),
        ("an alias there and back", ("appended 2", "appended 1")),
    ],
)
def test_model_reaches(scenario, ends):
    assert ends in explore(SCENARIOS[scenario], world.Rules()).ends


@pytest.mark.parametrize("mutant", scenarios.MUTANTS, ids=lambda m: m.name)
def test_mutant_is_found(mutant):
    with mutant.lax(), pytest.raises(world.Violation, match=mutant.says):
        explore(SCENARIOS[mutant.scenario], mutant.rules)


@pytest.mark.parametrize("mutant", [m for m in scenarios.MUTANTS if m.refused], ids=lambda m: m.name)
def test_readers_refuse_what_a_mutant_writes(mutant):
    with pytest.raises(world.Violation, match=r"readers refuse the log: .* breaks a rule of the log"):
        explore(SCENARIOS[mutant.scenario], mutant.rules)
