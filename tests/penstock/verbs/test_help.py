"""`penstock --help`: the verbs by who uses them."""

import re
from collections import Counter

import pytest

from penstock.formats.registry import FORMATS
from penstock.verbs import GROUPS, VERBS


def test_every_verb_is_in_one_group():
    grouped = Counter(name for names in GROUPS.values() for name in names)
    assert grouped == dict.fromkeys(VERBS, 1)


@pytest.mark.parametrize("columns", ["80", "44", "200"])
def test_help_shows_the_groups(cli, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    lines = cli("--help").out.splitlines()
    at = [lines.index(f"  {group}:") for group in GROUPS]
    assert at == sorted(at)
    for group, start in zip(GROUPS, at, strict=True):
        end = lines.index("  ", start) if "  " in lines[start:] else lines.index("", start)
        shown = [line.split()[0] for line in lines[start + 1 : end] if line[4:5].strip()]
        assert shown == list(GROUPS[group])
    words = " ".join(" ".join(lines).split())
    assert all(" ".join(verb.text.split()) in words for verb in VERBS.values())


def test_help_says_how_to_enable_completion(cli):
    out = cli("--help").out
    assert "pip install 'penstock-data[cli]'" in out
    assert 'eval "$(register-python-argcomplete penstock)"' in out


@pytest.mark.parametrize(
    ("verb", "modules"),
    [
        ("register", lambda format: format.registered),
        ("import", lambda format: format.registered or format.importer),
        ("export", lambda format: format.exporter),
    ],
)
def test_verb_names_its_formats(cli, monkeypatch, verb, modules):
    monkeypatch.setenv("COLUMNS", "2000")  # breaks no name at its hyphen
    out = cli(verb, "--help").out
    names = {name for name, format in FORMATS.items() if modules(format)}
    assert [name for name in sorted(names) if not re.search(rf"(?<![\w-]){name}(?![\w-])", out)] == []
