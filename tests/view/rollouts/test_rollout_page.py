"""A rollout's page: every token once with its values and colour, within bounds, whatever the fields hold."""

import json
import random
import re

import numpy as np
import pytest

import loader
from penstock.upkeep.exclusion import exclude_slice
from penstock.view.episodes import verified_field
from penstock.view.inspect.version_record import sample_fields
from penstock.view.rollouts import open_rollout as opening
from penstock.view.rollouts.open_rollout import open_rollout
from penstock.view.rollouts.rollout_record import PAGE, rollout_record
from tests.view.conftest import write_photos
from tests.view.rollouts.rig import HOSTILE, LONG, find_ordinal, rollout, write_rollouts
from tests.view.test_web import Served


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rollouts") / "root"
    with loader.Root(folder) as root:
        write_rollouts(root)
        write_photos(root, numbers=range(2))
    return folder


@pytest.fixture(scope="module")
def site(folder):
    server = Served(folder, recipe=None)
    yield server
    server.close()


@pytest.fixture(scope="module")
def long(folder):
    """Address of the rollout of three pages."""
    with loader.Root(folder) as root:
        return f"/v/rl/2/s/{find_ordinal(root.open('rl@2'), '0/1/0')}"


def rollout_page(version, ordinal, **options):
    (names,) = sample_fields(version, [ordinal])
    return rollout_record(open_rollout(version, ordinal, names), **options)


def page_tokens(record):
    """The tokens of a page's JSON, in order."""
    return [token for stretch in record["stretches"] for token in stretch["tokens"]]


def test_pages_hold_each_token_once_with_its_values(site, long):
    _, fields, _ = rollout(0, 1, 0)
    shown = []
    for first in (0, PAGE, 2 * PAGE):
        record = site.get(f"{long}.json?from={first + 5}").json()
        assert (record["first"], record["stop"]) == (first, min(first + PAGE, LONG))
        shown += page_tokens(record)
    assert [token["id"] for token in shown] == fields["tokens.npy"].tolist()
    assert [token["is_sampled"] for token in shown] == fields["mask.npy"].tolist()
    for place, (token, logprob) in enumerate(zip(shown, fields["logprobs.npy"], strict=True)):
        bounds = (0.5, 1, 2, 3, 5)
        assert token["shade"] == f"p{sum(-logprob >= bound for bound in bounds)}"
        assert token["title"].startswith(f"token {place:,} · id {token['id']} · ")
        assert f"logprobs {logprob:.4g}" in token["title"]


def test_tokens_are_coloured_by_the_chosen_value(site, long):
    _, fields, _ = rollout(0, 1, 0)
    window = slice(PAGE, 2 * PAGE)
    is_sampled = fields["mask.npy"][window].tolist()
    versions = fields["versions.npy"][window].tolist()
    expected = {
        "mask": ["sampled" if one else "" for one in is_sampled],
        "advantages.npy": ["n3" if one else "" for one in is_sampled],
        "versions.npy": [{-1: "", 0: "v1", 1: "v2"}[one] for one in versions],
    }
    for by, shades in expected.items():
        record = site.get(f"{long}.json?from={PAGE}&by={by}").json()
        assert [token["shade"] for token in page_tokens(record)] == shades
        page = site.get(f"{long}?from={PAGE}&by={by}").text
        assert len(re.findall(r'<span class="tok [a-z0-9]* ?(?:masked)?[^"]*" title="token', page)) == PAGE
        assert re.findall(r'aria-current="true">([^<]*)<', page) == [record["choices"][by]]


def test_turns_group_the_tokens_and_lead_to_their_page(site, long):
    record = site.get(f"{long}.json?from={PAGE}").json()
    described = [
        (one["role"], one["first"], len(one["tokens"]), one["is_continued"]) for one in record["stretches"]
    ]
    assert described == [
        ("user", PAGE, LONG // 2 - PAGE, True),
        ("assistant", LONG // 2, 2 * PAGE - LONG // 2, False),
    ]
    page = site.get(f"{long}?from={PAGE}&by=mask").text
    assert f'from={LONG // 2}&by=mask#turn1"' in page.replace("&amp;", "&")
    assert "It is 0." in page
    assert "2.5 s" in page


def test_facts_beside_the_tokens(site, long):
    record = site.get(f"{long}.json").json()
    _, fields, metadata = rollout(0, 1, 0)
    assert (record["n_tokens"], record["n_sampled"]) == (LONG, metadata["n_sampled"])
    sampled = fields["versions.npy"][fields["mask.npy"]]
    assert record["policies"] == [[0, int((sampled == 0).sum())], [1, int((sampled == 1).sum())]]
    shapes = {one["field"]: one["shape"] for one in record["shapes"]}
    assert shapes["experts.npy"] == f"uint16 [{LONG}, 3, 2]"
    assert shapes["kept.npy"] == f"uint32 [{metadata['n_sampled'] * 2}]"
    assert record["sample"]["columns"]["reward"] == "0.0"
    assert record["groups"] == {"group_id": "g1"}


def test_hostile_texts_are_text(site, long):
    for path in (long, f"{long}/group"):
        answer = site.get(path)
        assert answer.status_code == 200
        assert "<img src=x" not in answer.text
        assert "&lt;img src=x onerror=alert(1)&gt;" in answer.text
        assert "\u202e" not in answer.text
        assert "style=" not in answer.text
        assert "<script>" not in answer.text
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert site.ask("GET", path).status_code == 403


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("by=nothing.npy", "accepted: logprobs.npy, mask"),
        (f"from={LONG}", f"{LONG} tokens"),
        ("from=x", "whole number"),
    ],
)
def test_unknown_query_names_what_is_accepted(site, long, query, part):
    answer = site.get(f"{long}?{query}")
    assert answer.status_code == 404
    assert part in answer.text


def test_other_samples_have_their_own_pages(site):
    assert 'class="rollout"' not in site.get("/v/photos/1/s/0").text
    assert site.get("/v/photos/1/s/0/group").status_code == 404


def test_chat_with_a_mask_of_the_same_prefix_opens_the_page(root):
    with root.write("chats", facts={"q.tokens.npy": {"special": {"7": "<end>"}}}) as writer:
        fields = {"q.tokens.npy": np.array([5, 6, 7], np.uint16), "q.mask.npy": np.array([False, True, True])}
        writer.add("a", fields)
    record = rollout_page(root.open("chats@1"), 0)
    assert (record.field, record.by, record.n_sampled) == ("q.tokens.npy", "mask", 2)
    (stretch,) = record.stretches
    assert [token.text for token in stretch.tokens] == ["", "", "<end>"]


def random_turns(draw, n):
    """Turns with any bounds: overlapping, reversed, beyond the tokens, of other types."""
    values = [None, "3", True, -1, n + 1, 10**18, *range(n + 1), *range(n + 1)]
    turns = []
    for _ in range(draw.randrange(6)):
        turn = {
            "role": draw.choice(["user", "tool", None, 3, HOSTILE]),
            "text": draw.choice([None, "x", 5, [1]]),
        }
        turn["start"], turn["stop"] = draw.choice(values), draw.choice(values)
        turns.append(draw.choice([turn, turn, turn, "no object", 7]))
    return turns


def test_any_turns_show_each_token_once(root):
    draw = random.Random(5)
    cases = [(draw.randrange(1, 12), seed) for seed in range(60)]
    with root.write("turns") as writer:
        for n, seed in cases:
            lines = "".join(json.dumps(turn) + "\n" for turn in random_turns(random.Random(seed), n))
            fields = {"tokens.npy": np.arange(n), "mask.npy": np.ones(n, bool), "turns.jsonl": lines.encode()}
            writer.add(f"{seed}", fields)
    version = root.open("turns@1")
    for ordinal, key in enumerate(version.keys(range(len(cases)))):
        n, seed = next(case for case in cases if str(case[1]) == key)
        record = rollout_page(version, ordinal)
        places = [stretch.first + i for stretch in record.stretches for i in range(len(stretch.tokens))]
        assert places == list(range(n))
        turns = random_turns(random.Random(seed), n)
        for place in places:
            covering = [
                (turn["start"], number)
                for number, turn in enumerate(turns)
                if isinstance(turn, dict)
                and type(turn["start"]) is type(turn["stop"]) is int
                and 0 <= turn["start"] <= place < turn["stop"] <= n
            ]
            stretch = next(
                one for one in record.stretches if one.first <= place < one.first + len(one.tokens)
            )
            assert (stretch.turn >= 0) == bool(covering)
            if covering:
                assert stretch.turn in [number for _, number in covering]


def damage(folder, version, ordinal, field):
    """Change a byte of a stored field."""
    (address,) = version.address(np.array([ordinal]), [field])
    place = address.fields[field]
    path = folder / place.path
    data = bytearray(path.read_bytes())
    data[place.offset + place.nbytes - 1] ^= 1
    path.write_bytes(data)


def test_damaged_field_is_shown_as_damaged(tmp_path):
    folder = tmp_path / "root"
    fields = ["logprobs.npy", "mask.npy", "turns.jsonl", "experts.npy", "tokens.npy"]
    with loader.Root(folder) as root:
        version = write_rollouts(root, steps=1)
        for ordinal, field in enumerate(fields):
            damage(folder, version, ordinal, field)
    with loader.Root(folder) as root:
        for ordinal, field in enumerate(fields):
            record = rollout_page(root.open("rl@1"), ordinal)
            damaged = {one.field: one.error for one in record.shapes if one.error}
            assert list(damaged) == [field]
            assert "CRC-32C" in damaged[field]
            assert (record.n_tokens == 0) == (field == "tokens.npy")
            assert (record.by == "mask") == (field in ("logprobs.npy", "tokens.npy"))
    served = Served(folder, recipe=None)
    try:
        for ordinal in range(len(fields)):
            answer = served.get(f"/v/rl/1/s/{ordinal}")
            assert answer.status_code == 200
            assert ">damaged<" in answer.text
            assert served.get(f"/v/rl/1/s/{ordinal}/group").status_code == 200
    finally:
        served.close()


ODD = {
    "other length": ({"logprobs.npy": np.zeros(4, np.float32)}, "logprobs.npy has 4 values, tokens.npy 3"),
    "not an array": ({"logprobs.npy": b"words"}, "npy: "),
    "tokens of two dimensions": ({"tokens.npy": np.zeros((3, 1), int)}, "whole numbers of one dimension"),
    "tokens of floats": ({"tokens.npy": np.zeros(3)}, "whole numbers of one dimension"),
    "turns that are not JSON": ({"turns.jsonl": b"{"}, "jsonl: "),
    "turns of a huge number": ({"turns.jsonl": b'{"role": "user", "text": 1' + b"0" * 5000 + b"}"}, None),
    "no number": ({"logprobs.npy": np.array([np.nan, np.inf, -np.inf], np.float32)}, None),
    "largest numbers": ({"q.npy": np.array([1e308, -1e308, 0])}, None),
    "versions of floats": ({"versions.npy": np.array([np.nan, 1, 2])}, None),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_field_leaves_the_page_standing(root, name):
    fields, error = ODD[name]
    usual = {"tokens.npy": np.array([3, 4, 5]), "mask.npy": np.array([False, True, True])}
    with root.write("odd") as writer:
        writer.add("a", {**usual, **fields})
    version = root.open("odd@1")
    record = rollout_page(version, 0)
    for by in record.choices:
        assert rollout_page(version, 0, by=by).by == by
    errors = [one.error for one in record.shapes if one.error]
    if error is None:
        assert record.n_tokens == 3
    else:
        assert [error in text for text in errors] == [True]
    assert "nan" not in record.line.path


def test_large_field_is_read_by_its_header_alone(root, monkeypatch):
    read = []
    monkeypatch.setattr(opening, "WHOLE_BYTES", 2000)
    original = verified_field.VerifiedField._read

    def record_range(field, offset, nbytes):
        read.append(nbytes)
        return original(field, offset, nbytes)

    monkeypatch.setattr(verified_field.VerifiedField, "_read", record_range)
    usual = {"tokens.npy": np.arange(900), "mask.npy": np.ones(900, bool)}
    with root.write("large") as writer:
        writer.add("a", {**usual, "experts.npy": np.zeros((900, 8, 8), np.uint16)})
    record = rollout_page(root.open("large@1"), 0)
    shapes = {one.field: (one.shape, one.is_checked) for one in record.shapes}
    assert shapes["experts.npy"] == ("uint16 [900, 8, 8]", False)
    assert shapes["tokens.npy"] == ("int64 [900]", True)
    assert sum(read) < 3 * opening.HEAD_BYTES + 7200 + 128
    assert record.n_tokens == 900


def test_fields_beyond_the_listed_ones_are_counted(root, monkeypatch):
    monkeypatch.setattr(opening, "MOST_FIELDS", 4)
    version = write_rollouts(root, steps=1)
    record = rollout_page(version, 0)
    names = [one.field for one in record.shapes]
    assert (len(names), record.n_fields) == (4, 9)
    assert {"tokens.npy", "mask.npy", "turns.jsonl"} <= set(names)
    served = Served(root, recipe=None)
    try:
        page = served.get("/v/rl/1/s/0").text
    finally:
        served.close()
    assert '<p class="quiet">and 5 more</p>' in page
    assert '<span class="tok ' in page


def test_page_of_a_hundred_thousand_tokens_is_bounded(root):
    n = 100_000
    turns = "".join(
        json.dumps({"role": "tool", "start": at, "stop": at + 10}) + "\n" for at in range(0, n, 10)
    )
    with root.write("huge") as writer:
        fields = {"tokens.npy": np.arange(n), "mask.npy": np.arange(n) % 2 == 0}
        fields |= {"logprobs.npy": -np.ones(n, np.float32), "turns.jsonl": turns.encode()}
        writer.add("a", fields)
    served = Served(root, recipe=None)
    try:
        page = served.get("/v/huge/1/s/0?from=70000")
        assert page.status_code == 200
        assert page.text.count('<span class="tok ') == PAGE
        assert len(page.content) < 600_000
    finally:
        served.close()


def test_page_names_its_slices_and_exclusion(root):
    version = write_rollouts(root, steps=1)
    ordinal = find_ordinal(version, "0/0/1")
    root.save_slice("rl@1", "odd", [ordinal], by="ann", why="short answers")
    exclude_slice(root, "rl@1", "odd", by="bea", reason="wrong <grader>")
    served = Served(root, recipe=None)
    try:
        page = served.get(f"/v/rl/1/s/{ordinal}").text
        other = served.get(f"/v/rl/1/s/{find_ordinal(version, '0/0/2')}").text
    finally:
        served.close()
    assert "<b>odd@1</b>" in page
    assert "short answers" in page
    assert "wrong &lt;grader&gt;" in page
    assert "<b>odd@1</b>" not in other


def test_page_leads_to_rollouts_like_it(root, site, long):
    with root.write("near") as writer:
        for number in range(2):
            key, fields, columns = rollout(0, 0, number)
            writer.add(key, fields | {"embedding.npy": np.array([1, number], np.float16)}, columns)
    ordinal = find_ordinal(root.open("near"), "0/0/0")
    own = Served(root, recipe=None)
    try:
        page = own.get(f"/v/near/1/s/{ordinal}").text
        ranked = own.get("/v/near/1.json?like=0/0/0").json()
    finally:
        own.close()
    assert '<a class="button" href="../../../../v/near/1?like=0%2F0%2F0">More like this' in page
    assert ranked["rows"][0]["key"] == "0/0/0"
    assert "More like this" not in site.get(long).text, "its version has nothing to compare"
