"""`version.search("words")` beside a search that reads every text character by character."""

import json
import random
import unicodedata

import numpy as np
import pyarrow as pa
import pytest

import loader
from loader.dataset.reading.verified_gathers import gather_bytes
from loader.dataset.search.field_texts import MOST_FIELD_BYTES, search_text
from loader.dataset.search.text_reads import TextReader
from loader.dataset.search.words import fold_texts, in_order, parse_words, term_matches
from loader.errors import FieldNotFound, InvalidRuntime, NotIndexed
from penstock.search.index_build import make_index
from tests.refusals import refusal

TEXTS = {
    "a": "A red CUP on a table",
    "b": "a red-cup holder, empty",
    "c": "cupboard; redder",
    "d": "Straße, ﬁsh and a \uff43\uff55\uff50",
    "e": "红色的杯子 red杯",
    "f": "カップ と 컵",
    "g": "snake_case cup2 2 cups",
    "h": "first line\nred\n\ncup",
    "i": "",
    "j": "don't",
    "k": "e\u0301clair and ÉCLAIR",
}
QUERIES = {
    "red cup": "abh",
    '"red cup"': "abh",
    '"cup red"': "",
    "red cup -empty": "ah",
    'red -"red cup"': "e",
    "strasse": "d",
    "fish cup": "d",
    "杯": "e",
    "杯红": "e",
    '"杯红"': "",
    '"杯子"': "e",
    '"子 red杯"': "e",
    "カップ": "f",
    "컵": "f",
    "snake_case": "g",
    "snake": "",
    "cup2 2": "g",
    "don't": "j",
    "-red -cup": "cfgijk",
    "éclair": "k",
    "RED": "abeh",
    "-RED-CUP red": "e",
}


@pytest.fixture(scope="module")
def version(tmp_path_factory):
    root = loader.Root(tmp_path_factory.mktemp("words") / "root")
    with root.write("d", part_samples=3) as writer:
        for number, (key, text) in enumerate(TEXTS.items()):
            writer.add(key, {"caption.txt": text}, {"w": number})
    return root.open("d")


@pytest.mark.parametrize("query", QUERIES)
def test_words_of_texts(version, query):
    result = version.search(query)
    assert sorted(result.keys()) == list(QUERIES[query])
    assert result.ordinals.tolist() == sorted(result.ordinals.tolist())
    assert (result.field, result.exact, result.n_searched) == ("caption.txt", True, len(TEXTS))
    assert np.isnan(result.scores).all()


def test_words_narrow_a_where(version):
    assert sorted(version.search("red", where="w > 0").keys()) == ["b", "e", "h"]
    assert len(version.search("red", k=2)) == 2
    assert version.search("red", k=2).n_matching == 4


@pytest.mark.parametrize(
    ("query", "given"),
    [*((query, query) for query in ("", "  ", '""', "- -", "...")), ("x" * 401, 401)],
)
def test_queries_without_words_or_with_too_many_are_refused(version, query, given):
    with refusal(InvalidRuntime, what="words", given=given):
        version.search(query)


def test_versions_without_texts(tmp_path, version, monkeypatch):
    root = loader.Root(tmp_path / "root")
    with root.write("d") as writer:
        writer.add("a", {"cls": 1})
    with refusal(FieldNotFound, what="text field", where="d@1", given="none"):
        root.open("d").search("red")
    with refusal(FieldNotFound, what="caption", where="d@1"):
        version.search("red", field="caption")
    monkeypatch.setattr("loader.dataset.search.text_index.MOST_READ", 5)
    fresh = loader.Root(version.store.url).open("d")
    with pytest.raises(NotIndexed, match=r"11 samples .* Run penstock index d@1 --field caption.txt"):
        fresh.search("red")


def test_turns_language_and_tasks_are_searched(tmp_path):
    root = loader.Root(tmp_path / "root")
    turns = [{"role": "user", "text": "Fold the towel"}, {"role": "tool", "text": 7}, {"text": "done \u00e9"}]
    lines = "\n".join(json.dumps(turn) for turn in turns)
    episode = {"fps": 25, "tasks": [{"task": "lift the red cup", "start": 0, "stop": 9}, "odd", {"task": 3}]}
    nothing = {"turns.jsonl": b"", "language.jsonl": b"", "episode.json": b"{}", "facts.json": b"{}"}
    samples = {
        "chat": {"turns.jsonl": lines.encode()},
        "torn": {"turns.jsonl": b'{"text": "a towel"}\n{"text": "\xff\n[1]\n{"text": "late"}'},
        "robot": {"episode.json": json.dumps(episode).encode()},
        "spoken": {"language.jsonl": b'{"start_ns": 0, "text": "red towel"}\n'},
        "other": {"episode.json": b'{"tasks": {"task": "cup"}}', "facts.json": b'{"text": "towel"}'},
        "zeros": {"turns.jsonl": bytes(40)},
    }
    with root.write("d") as writer:
        for key, fields in samples.items():
            writer.add(key, nothing | fields)
    version = root.open("d")
    queries = {
        "towel": ["chat", "torn", "spoken"],
        '"fold the towel"': ["chat"],
        "user": [],
        "é": ["chat"],
        "late": ["torn"],
        "red": ["robot", "spoken"],
        "cup": ["robot"],
        "odd": [],
    }
    for query, keys in queries.items():
        assert sorted(version.search(query).keys()) == sorted(keys), query
    make_index(root, "d")
    for query, keys in queries.items():
        assert sorted(loader.Root(root.url).open("d").search(query).keys()) == sorted(keys), query


def test_long_texts_are_read_in_bounded_blocks(tmp_path, monkeypatch):
    root = loader.Root(tmp_path / "root")
    filler = {"text": "x" * 3000}
    with root.write("d") as writer:
        for number in range(40):
            lines = [{"text": f"word{number}"}, filler, filler, {"text": "beyond"}]
            writer.add(f"k{number:02}", {"turns.jsonl": "\n".join(map(json.dumps, lines)).encode()})
        writer.add("large", {"turns.jsonl": b'{"text": "large"}\n' + bytes(MOST_FIELD_BYTES)})
    monkeypatch.setattr("loader.dataset.search.text_reads._MOST_BLOCK_BYTES", 20_000)
    largest = []

    def record_block(*arguments):
        gathered, others = gather_bytes(*arguments)
        largest.append(gathered.sizes[:-1].sum())
        return gathered, others

    monkeypatch.setattr("loader.dataset.search.text_reads.gather_bytes", record_block)
    version = root.open("d")
    assert version.search("word7").keys() == ["k07"]
    assert len(largest) > 5
    assert max(largest) <= 20_000
    assert len(version.search("beyond")) == 0
    assert len(version.search("large")) == 0


@pytest.mark.parametrize("is_on_disk", [True, False])
def test_texts_read_at_once_are_these_read_one_by_one(tmp_path, monkeypatch, is_on_disk):
    stored = [b"red", b"", b"\0\0", b"\0cup", "\u00e9".encode(), b"\xff", b"a\xffb", b"damaged", b"x" * 4096]
    stored += ["\u00e9".encode() * 4000, b"y" * 20_000, b"line\nfeed\0"]
    if not is_on_disk:
        monkeypatch.setattr("loader.dataset.search.vectors.as_disk", lambda store: None)
    for number, data in enumerate([[b"", b""], stored, [each for each in stored if b"\xff" not in each]]):
        root = loader.Root(tmp_path / str(number))
        with root.write("d") as writer:
            for each, text in enumerate(data):
                writer.add(f"k{each:02}", {"caption.txt": text, "label.cls": 0})
        version = root.open("d")
        expected = [search_text("caption.txt", text) for text in data]
        if b"damaged" in data:
            (path,) = (tmp_path / str(number)).rglob("*.tar")
            path.write_bytes(path.read_bytes().replace(b"damaged", b"damages"))
            expected[data.index(b"damaged")] = None
        reader = TextReader(version, "caption.txt")
        part = reader.part(0).to_pylist()
        samples = reader.samples(np.arange(len(version))[::-2]).to_pylist()
        reader.close()
        by_key = dict(zip(version.keys(np.arange(len(version))), part, strict=True))
        assert [by_key[key] for key in sorted(by_key)] == expected
        assert samples == part[::-2]


def test_sample_has_the_words_of_all_its_texts(tmp_path):
    root = loader.Root(tmp_path / "root")
    with root.write("d") as writer:
        writer.add("a", {"caption.txt": "red", "tags.txt": "cup"})
        writer.add("b", {"caption.txt": "red", "tags.txt": "empty cup"})
    version = root.open("d")
    assert sorted(version.search("red cup").keys()) == ["a", "b"]
    assert version.search("red cup -empty").keys() == ["a"]
    assert version.search("red", field="tags.txt").keys() == []


def fold(text):
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def tokens(text):
    """Return the words of a text, by the rule in the guide."""
    words = [""]
    for character in fold(text):
        is_letter = character == "_" or unicodedata.category(character)[0] in "LMN"
        name = unicodedata.name(character, "")
        is_cjk = is_letter and name.startswith(("CJK", "HIRAGANA", "KATAKANA", "HANGUL"))
        if is_cjk:
            words += [character, ""]
        elif is_letter:
            words[-1] += character
        else:
            words.append("")
    return [word for word in words if word]


def has_words(text, term):
    words = tokens(text)
    n = len(term.words)
    starts = range(len(words) - n + 1)
    return any(tuple(words[start : start + n]) == term.words for start in starts)


def test_random_texts_agree_with_a_search_by_words():
    rng = random.Random(5)
    pieces = [
        "red",
        "Cup",
        "cups",
        "杯",
        "子",
        "カ",
        "컵",
        "_",
        " ",
        "-",
        ".",
        "ß",
        "SS",
        "ﬁ",
        "2",
        "é",
        "e\u0301",
        "\n",
        "'",
    ]
    texts = ["".join(rng.choices(pieces, k=rng.randint(0, 8))) for _ in range(400)]
    folded = fold_texts(pa.array(texts))
    for _ in range(120):
        query = "".join(rng.choices(pieces, k=rng.randint(1, 4)))
        if rng.random() < 0.3:
            query = f'"{query}"'
        try:
            terms = parse_words(query)
        except InvalidRuntime:
            continue
        for term in in_order(terms):
            expected = [has_words(text, term) for text in texts]
            assert term_matches(folded, term).tolist() == expected, (query, term)
