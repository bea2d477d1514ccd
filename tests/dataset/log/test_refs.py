"""What things may be called, and what a reference resolves to."""

import pytest

from loader.dataset.log.refs import ParsedRef, parse_ref, resolve
from loader.dataset.log.state import Ref, State, VersionRecord
from loader.dataset.names import check_dataset_name, check_ref_name
from loader.errors import InvalidName, VersionNotFound, VersionRetired
from tests.refusals import refusal


def record(dataset, number, digit, retired=None):
    return VersionRecord(
        dataset=dataset,
        number=number,
        id=f"v-{digit * 64}",
        manifest="m.json",
        sha256=digit * 64,
        parent=None,
        txn=f"t{number}",
        denies=0,
        n=number,
        retired=retired,
    )


@pytest.fixture
def state():
    photos = (record("photos", 1, "a"), record("photos", 2, "b"), record("photos", 3, "c", "bad labels"))
    old = (record("old", 1, "d", "gone"),)
    refs = [
        Ref(dataset="photos", name="prod", ref_kind="alias", number=1),
        Ref(dataset="photos", name="2026.11.20", ref_kind="tag", number=3),
    ]
    return State(
        datasets={"photos": photos, "old": old},
        ids={v.id: (v.dataset, v.number) for v in (*photos, *old)},
        refs={(r.dataset, r.name): r for r in refs},
    )


@pytest.mark.parametrize("name", ["a", "photos", "0", "A.b_c-d", "2026", "a" * 128, "latest"])
def test_dataset_names(name):
    assert check_dataset_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-a", "_a", "a/b", "a@b", "a b", "a\n", "é", "a" * 129, "v-12", "v-x"]
)
def test_names_that_no_dataset_has(name):
    with refusal(InvalidName, what="dataset", given=name):
        check_dataset_name(name)


@pytest.mark.parametrize("name", ["prod", "2026.11.20", "v1", "latest2", "0a"])
def test_ref_names(name):
    assert check_ref_name(name) == name


@pytest.mark.parametrize("name", ["latest", "7", "0012", "v-", "v-abc", "", "a/b", "٣"])
def test_names_that_no_ref_has(name):
    with pytest.raises(InvalidName):
        check_ref_name(name)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("photos", ParsedRef(dataset="photos", name="latest")),
        ("photos@latest", ParsedRef(dataset="photos", name="latest")),
        ("photos@3", ParsedRef(dataset="photos", number=3)),
        ("photos@prod", ParsedRef(dataset="photos", name="prod")),
        ("v-0123abcd", ParsedRef(id_prefix="v-0123abcd")),
    ],
)
def test_parse(text, parsed):
    assert parse_ref(text) == parsed
    assert parse_ref(str(parsed)) == parsed


@pytest.mark.parametrize(
    "text", ["", "@3", "photos@", "photos@0", "photos@03", "photos@a@b", "photos@v-12", "v-12", "v-0123ABCD"]
)
def test_what_does_not_parse(text):
    with pytest.raises(InvalidName):
        parse_ref(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("photos", 2),
        ("photos@latest", 2),
        ("photos@1", 1),
        ("photos@prod", 1),
        ("v-aaaaaaaa", 1),
        ("v-" + "b" * 64, 2),
    ],
)
def test_resolve(state, text, number):
    assert resolve(state, text).number == number
    assert resolve(state, parse_ref(text)).name == f"photos@{number}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("photo", r"no dataset 'photo', did you mean 'photos'[?] datasets here: old, photos"),
        ("photos@9", r"photos has versions 1\.\.3 \(retired 3\), tags 2026\.11\.20, aliases prod"),
        ("photos@dev", r"no photos@dev: .*aliases prod"),
        ("v-0123abcd", r"no version v-0123abcd: datasets here: old, photos"),
    ],
)
def test_what_is_not_found_says_what_there_is(state, text, says):
    with pytest.raises(VersionNotFound, match=says):
        resolve(state, text)


def test_empty_root_says_so():
    with pytest.raises(VersionNotFound, match="datasets here: none"):
        resolve(State(), "photos")


def test_beginning_of_two_ids_is_refused(state):
    twin = record("twin", 1, "a")
    twin_id = "v-" + "a" * 20 + "0" * 44
    both = State(datasets={**state.datasets, "twin": (twin,)}, ids={**state.ids, twin_id: ("twin", 1)})
    with refusal(VersionNotFound, what="id", given="v-aaaaaaaa", accepted=sorted(both.ids)[:2]):
        resolve(both, "v-aaaaaaaa")


@pytest.mark.parametrize("text", ["photos@3", "photos@2026.11.20", "v-cccccccc"])
def test_retired_version_gives_its_reason(state, text):
    with refusal(VersionRetired, what=text, where=state.version("photos", 3).id, given="bad labels"):
        resolve(state, text)
    assert resolve(state, text, retired=True).number == 3


def test_dataset_of_retired_versions_has_no_latest(state):
    with refusal(VersionRetired, what="version", given="old"):
        resolve(state, "old")
    assert resolve(state, "old@1", retired=True).retired == "gone"
