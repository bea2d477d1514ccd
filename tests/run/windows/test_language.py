"""The text of windows: what a search over the lines of `language.jsonl` finds, and lines that are not language."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loader
from loader.errors import Corrupt, DecodeFailed, FieldNotFound, InvalidPlan
from loader.modalities.language import MAX_LINES, ActiveText, LanguageLine, parse_language
from tests.refusals import refusal

NUMBERS = itertools.count()
STEP = 60
LINES = [
    {"start_ns": 0, "style": "task", "text": "lift"},
    {"start_ns": 100, "end_ns": 200, "style": "subtask", "text": "reach"},
    {"start_ns": 400, "style": "subtask", "text": "grasp"},
    {"start_ns": 480, "style": "subtask", "tool_calls": [{"type": "function"}]},
]


@pytest.fixture
def root() -> Iterator[loader.Root]:
    with loader.Root(f"memory://language-{next(NUMBERS)}") as opened:
        yield opened


def write_language(root: loader.Root, *languages: Any, clock: bool = True) -> loader.View:
    with root.write("arm") as writer:
        for number, language in enumerate(languages):
            fields: dict[str, Any] = {"action.npy": np.full((10, 1), number, np.float32)}
            fields |= {"action.ns.npy": np.arange(10) * STEP} if clock else {}
            writer.add(f"ep{number}", fields | {"language.jsonl": language})
    return root.open("arm@latest").select("action.npy")


def make_plan(view: loader.View, text: Any = ("subtask", "task"), **options: Any) -> loader.Plan:
    at = {"action.npy": loader.rows(0, 1)}
    windows = loader.windows(view, anchor="action.npy", at=at, text=text)
    return loader.plan({"arm": windows}, seed=2, global_batch=5, **options)


def texts(plan: loader.Plan, **options: Any) -> dict[str, str]:
    """Key of a window -> its text."""
    with loader.Loader(plan, framework="numpy", epochs=1, workers=0, **options) as batches:
        return {
            key: text
            for batch in batches
            for (_, key), text in zip(filter(None, batch.ids), batch["text"], strict=True)
        }


def test_first_active_style_is_the_text(root: loader.Root) -> None:
    plan = make_plan(write_language(root, LINES, [{"start_ns": 300, "style": "task", "text": "drop"}]))
    read = texts(plan)
    first = ["lift", "lift", "reach", "reach", "lift", "lift", "lift", "grasp", "grasp", "grasp"]
    assert [read[f"ep0@{row}"] for row in range(10)] == first
    assert [read[f"ep1@{row}"] for row in range(10)] == [""] * 5 + ["drop"] * 5
    assert texts(make_plan(root.open("arm").select("action.npy"), text=["memory"])) == dict.fromkeys(read, "")


def test_styles_are_part_of_the_plan(root: loader.Root) -> None:
    view = write_language(root, LINES)
    plan, other = make_plan(view), make_plan(view, text=("task",))
    assert len({plan.hash, other.hash, make_plan(view, text=()).hash}) == 3
    assert "text" not in make_plan(view, text=()).sources["arm"].view.spec()["layout"]
    again = loader.open_plan(root, plan.save(root))
    assert again.hash == plan.hash
    assert texts(again) == texts(plan)


def test_ranks_and_workers_agree_on_texts(root: loader.Root) -> None:
    plan = make_plan(write_language(root, LINES, LINES))
    whole = texts(plan)
    parts = [texts(plan, rank=rank, world_size=2) for rank in range(2)]
    assert parts[0] | parts[1] == whole


lines = st.lists(
    st.builds(
        LanguageLine,
        start_ns=st.integers(0, 12),
        end_ns=st.none() | st.integers(13, 20) | st.integers(1, 3),
        text=st.sampled_from("abcdef"),
        tool_calls=st.none(),
    ).map(lambda line: line._replace(end_ns=None if line.end_ns is None else line.start_ns + line.end_ns)),
    max_size=8,
)


@given(lines)
def test_active_text_is_what_a_search_finds(own: list[LanguageLine]) -> None:
    active = ActiveText(own)
    for time in range(-1, 40):
        found = []
        for number, line in enumerate(own):
            later = [one.start_ns for one in own if one.start_ns > line.start_ns]
            end = min(later, default=1000) if line.end_ns is None else line.end_ns
            if line.start_ns <= time < end:
                found.append((-line.start_ns, number, line.text))
        assert active.at(time) == (min(found)[2] if found else None)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("[]", {"where": "line 3", "given": "list"}),
        ("{", {"what": "syntax", "where": "line 3", "given": 1}),
        ("[" * 200 + "]" * 200, {"what": "depth", "where": "line 3"}),
        ('{"text": "a"}', {"what": "start_ns", "where": "line 3", "given": None}),
        ('{"start_ns": 1.5, "text": "a"}', {"what": "start_ns", "where": "line 3", "given": 1.5}),
        ('{"start_ns": true}', {"what": "start_ns", "where": "line 3", "given": True}),
        (
            '{"start_ns": 9223372036854775807}',
            {"what": "start_ns", "where": "line 3", "given": 9223372036854775807},
        ),
        ('{"start_ns": 5, "end_ns": 5}', {"what": "end_ns", "where": "line 3", "given": 5}),
        ('{"start_ns": 5, "style": 1}', {"what": "style", "where": "line 3", "given": 1}),
        ('{"start_ns": 5, "role": null}', {"what": "role", "where": "line 3", "given": None}),
        ('{"start_ns": 5, "tool_calls": {}}', {"what": "tool_calls", "where": "line 3", "given": "{}"}),
        ('{"start_ns": 5, "words": "a"}', {"what": "words", "where": "line 3"}),
        ('{"start_ns": 5, "text": "\\ud800"}', {"what": "surrogate", "where": "line 3"}),
    ],
)
def test_line_that_is_no_language_is_corrupt_by_its_number(line: str, fault: dict[str, object]) -> None:
    with refusal(Corrupt, **fault):
        parse_language(f'{{"start_ns": 0}}\n\n{line}\n'.encode())


def test_language_is_bounded() -> None:
    with refusal(Corrupt, what="language", where=f"line {MAX_LINES + 1}"):
        parse_language(b'{"start_ns":0}\n' * (MAX_LINES + 1))
    with refusal(Corrupt, what="language", given=2**25):
        parse_language(b" " * 2**25)


def test_bad_episode_is_one_bad_sample(root: loader.Root) -> None:
    plan = make_plan(write_language(root, LINES, b'{"start_ns": 0}\n{"start_ns": -}\n'))
    with refusal(DecodeFailed, what="line 2", within="sample 'ep1' field 'language.jsonl'"):
        texts(plan, on_corrupt="raise")
    assert {key.partition("@")[0] for key in texts(plan, on_corrupt="substitute", corrupt_budget=1.0)} == {
        "ep0"
    }


def test_what_cannot_have_a_text_is_refused(root: loader.Root) -> None:
    view = write_language(root, LINES, clock=False)
    with refusal(InvalidPlan, what="text", where="action.npy"):
        make_plan(view)
    for wrong in ("task", [1], ["task", "task"], [""], 5):
        with refusal(InvalidPlan, what="text", given=wrong):
            make_plan(view, text=wrong)
    with root.write("bare") as writer:
        writer.add("a", {"action.npy": np.zeros((3, 1)), "action.ns.npy": np.arange(3)})
    with refusal(FieldNotFound, what="language.jsonl", where="bare@1"):
        make_plan(root.open("bare").select("action.npy"))
