"""Chats: the template's text, the library's tokens, and a mask of what the assistant writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assets.featurizers import make
from assets.featurizers.texts import chat as chat_module
from assets.featurizers.texts import template_sandbox
from assets.featurizers.texts.chat_template import read_template
from assets.media.unit import Unusable
from loader.errors import InvalidSpec
from tests.refusals import refusal

from .conftest import STOCK

MARKED = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.role == 'assistant' %}"
    "{% generation %}{{- message.content + '<|im_end|>' }}{% endgeneration %}"
    "{%- else %}{{- message.content + '<|im_end|>' }}{%- endif %}"
    "{{- '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""The stock template with marks."""
MESSAGES = [
    {"role": "system", "content": "think first"},
    {"role": "user", "content": "what is 2 + 2?"},
    {"role": "assistant", "content": "it is 4.  "},
    {"role": "user", "content": "and 語 🙂?"},
    {"role": "assistant", "content": "語 is 🙂"},
]


def chat(parameters: dict[str, Any], messages: Any = MESSAGES, tools: Any = None, **more: Any) -> Any:
    body = {"messages": messages, "tools": tools}
    return make("tokens", chat="json", **parameters, **more)("text", {"json": json.dumps(body).encode()})


def training_texts(parameters: dict[str, Any], features: Any) -> list[str]:
    """Return the texts of the stretches of trained tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(parameters["tokenizer"])
    ids, mask = features.fields["tokens.npy"], features.fields["mask.npy"]
    changes = np.flatnonzero(np.diff(mask.astype(int), prepend=0, append=0))
    return [
        tokenizer.decode(ids[start:stop].tolist(), skip_special_tokens=False)
        for start, stop in changes.reshape(-1, 2)
    ]


def write_template(folder: Path, source: str) -> str:
    path = folder / "template.jinja"
    path.write_text(source)
    return str(path)


def test_assistants_turns_are_trained_with_their_end(parameters: dict[str, Any]) -> None:
    features = chat(parameters)
    assert training_texts(parameters, features) == ["it is 4.  <|im_end|>", "語 is 🙂<|im_end|>"]
    mask = features.fields["mask.npy"]
    assert mask.dtype == bool
    assert mask.shape == features.fields["tokens.npy"].shape
    assert features.columns == {"n_tokens": len(mask), "n_trained": int(mask.sum())}


def test_marks_give_the_mask_of_the_prefixes(parameters: dict[str, Any], tmp_path: Path) -> None:
    by_prefixes = chat(parameters)
    by_marks = chat(parameters, template=write_template(tmp_path, MARKED))
    for field in ("tokens.npy", "mask.npy"):
        assert by_marks.fields[field].tolist() == by_prefixes.fields[field].tolist()


@pytest.mark.server
@pytest.mark.parametrize("source", [STOCK, MARKED])
def test_tokens_and_mask_are_those_of_transformers(
    parameters: dict[str, Any], tmp_path: Path, source: str
) -> None:
    from transformers import PreTrainedTokenizerFast

    library = PreTrainedTokenizerFast(tokenizer_file=parameters["tokenizer"], eos_token="<|im_end|>")
    expected = library.apply_chat_template(
        MESSAGES,
        chat_template=source,
        return_dict=True,
        return_assistant_tokens_mask=source == MARKED,
    )
    features = chat(parameters, template=write_template(tmp_path, source))
    assert features.fields["tokens.npy"].tolist() == list(expected["input_ids"])
    if source == MARKED:
        assert features.fields["mask.npy"].astype(int).tolist() == list(expected["assistant_masks"])


def test_tools_are_in_the_text_and_not_trained(parameters: dict[str, Any]) -> None:
    with_tools = chat(parameters, tools=[{"name": "add", "说": "è"}])
    without = chat(parameters)
    assert with_tools.columns["n_tokens"] > without.columns["n_tokens"]
    assert training_texts(parameters, with_tools) == training_texts(parameters, without)


def test_other_field_names_mask_and_columns(parameters: dict[str, Any]) -> None:
    featurizer = make("tokens", chat="document.json", field="q.tokens.npy", **parameters)
    assert featurizer.outputs["text"] == ("q.tokens.npy", "q.mask.npy")
    assert featurizer.columns["text"] == ("q_n_tokens", "q_n_trained")
    assert featurizer.inputs["text"] == ("document.json",)


DROPS_THOUGHTS = (
    "{%- for message in messages %}"
    "{%- set content = message.content if loop.last else message.content.split('</think>')[-1] %}"
    "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
THOUGHTS = [
    {"role": "user", "content": "what?"},
    {"role": "assistant", "content": "<think>first</think>it is"},
    {"role": "user", "content": "and?"},
    {"role": "assistant", "content": "<think>then</think>4"},
]


@pytest.mark.parametrize(
    ("source", "messages", "code", "says"),
    [
        (DROPS_THOUGHTS, THOUGHTS, "template", "message 1 does not continue the text before it"),
        ("{{ raise_exception('roles must alternate') }}", MESSAGES, "template", "roles must alternate"),
        ("{{ messages[9].content }}", MESSAGES, "template", "UndefinedError"),
        ("{{ ''.__class__.__mro__ }}", MESSAGES, "template", "SecurityError"),
        ("{{ namespace(__html__=1) }}", MESSAGES, "template", "names begin with a letter"),
        ("{% set n = namespace() %}{% set n._x = 1 %}", MESSAGES, "template", "names begin with a letter"),
        ("{{ dict.fromkeys('ab') }}", MESSAGES, "template", "Error"),
        ("{% for i in range(10**9) %}x{% endfor %}", MESSAGES, "template", "Range too big"),
        ("{{ 'x' * 10**9 }}", MESSAGES, "template", "beyond what a chat template needs"),
        ("{{ 10 ** 10 ** 10 }}", MESSAGES, "template", "a power above 64"),
        ("{{ 'x'.ljust(10**9) }}", MESSAGES, "template", "SecurityError"),
        ("{{ '%01000000000d' % 1 }}", MESSAGES, "template", "not formatted by %"),
        ("{% include '/etc/passwd' %}", MESSAGES, "template", "no loader"),
        ("{{ strftime_now('%d') }}", MESSAGES, "template", "strftime_now"),
        (STOCK, MESSAGES[:2], "untrained", "the assistant writes no token"),
        (MARKED, MESSAGES[:2], "untrained", "the assistant writes no token"),
        (STOCK, [], "no_chat", "a list of messages"),
        (STOCK, "hello", "no_chat", "a list of messages"),
        (STOCK, [{"content": "hi"}], "no_chat", "message 0 is"),
        (
            STOCK,
            [{"role": "user", "content": "a<|im_end|>b"}],
            "special_token",
            "message 0 contains '<|im_end|>'",
        ),
        (STOCK, [{"role": "user", "content": "\ufdd0"}], "special_token", "message 0 contains"),
        (STOCK, [{"role": "user", "content": "\ud800"}], "undecodable", "message 0"),
        (STOCK, [{"role": "user", "content": None}], "template", "TypeError"),
    ],
)
def test_chat_is_refused(
    parameters: dict[str, Any], tmp_path: Path, source: str, messages: Any, code: str, says: str
) -> None:
    with pytest.raises(Unusable) as caught:
        chat(parameters, messages, template=write_template(tmp_path, source))
    assert caught.value.code == code
    assert says in str(caught.value)


NESTED_LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
NESTED_TESTS = "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}"
NESTED_SEARCHES = "{% for a in range(99999) %}{% if -1 in range(99999) | list %}{% endif %}{% endfor %}"
TREE_OF_CALLS = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
ENDLESS_CALLS = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"
DOUBLED = "{%% set ns = namespace(x='x') %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}"
LISTS = DOUBLED % "[ns.x, ns.x]"


@pytest.mark.parametrize(
    "source",
    [
        NESTED_LOOPS,
        NESTED_TESTS,
        NESTED_SEARCHES,
        TREE_OF_CALLS,
        ENDLESS_CALLS,
        DOUBLED % "ns.x ~ ns.x",
        DOUBLED % "ns.x + ns.x",
        DOUBLED % "ns.x * 2",
        DOUBLED % "ns.x | replace('x', 'xx')",
        DOUBLED % "ns.x.replace('x', 'xx')",
        DOUBLED % "[ns.x, ns.x] | join",
        DOUBLED % "'-'.join([ns.x, ns.x])",
        LISTS + "{{ ns.x }}",
        LISTS + "{{ ns.x | tojson }}",
        LISTS + "{{ ns.x == ns.x }}{{ ns.x ~ '' }}",
        "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ (5).to_bytes(10**9, 'big') }}",
        "{{ messages | tojson(indent=10**9) }}",
        "{% import 'os' as os %}",
        "{% from 'os' import system %}",
        "{% extends 'base' %}",
    ],
)
def test_template_that_loops_grows_or_imports_ends_in_a_rejection(
    parameters: dict[str, Any], tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_WORK", 2**24)
    template = write_template(tmp_path, source)
    with pytest.raises(Unusable) as caught:
        chat(parameters, template=template)
    assert caught.value.code == "template"
    assert "message" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{{ x | replace('a', y, 1) }}",
        "{{ x | replace('a', y, count=1) }}",
        "{{ x.replace('a', y, 1) }}",
        "{{ x.replace('a', y, count=1) }}",
    ],
)
def test_replacement_pays_for_what_it_replaces_only(source: str) -> None:
    sandbox = template_sandbox.TemplateSandbox()
    budget = sandbox.start(template_sandbox.WorkBudget(200_000))
    text = "a" * 10_000
    replacement = "b" * 1000
    assert sandbox.from_string(source).render(x=text, y=replacement) == replacement + text[1:]
    assert budget.remaining < 200_000 - len(text)


def test_loop_of_ten_thousand_million_passes_ends_within_the_full_budget(
    parameters: dict[str, Any], tmp_path: Path
) -> None:
    with refusal(Unusable, what="template", given="WorkExceeded"):
        chat(parameters, template=write_template(tmp_path, NESTED_LOOPS))


def test_long_chat_is_within_the_work_of_a_template(parameters: dict[str, Any], tmp_path: Path) -> None:
    turns = [{"role": role, "content": "it is 4. " * 50} for role in ("user", "assistant")]
    marked = write_template(tmp_path, MARKED)
    assert chat(parameters, turns * 100, template=marked).columns["n_trained"] > 10_000


def test_chat_that_would_be_rendered_as_a_million_messages_is_refused(
    parameters: dict[str, Any], tmp_path: Path
) -> None:
    """A template without marks is rendered three times per turn; one with marks once."""
    turns = [{"role": role, "content": "it is 4."} for role in ("user", "assistant")]
    long_chat = turns * 600
    with pytest.raises(Unusable) as caught:
        chat(parameters, long_chat)
    assert caught.value.code == "long_chat"
    assert "its 1,200 messages, 600 of the assistant, would be rendered as 1,081,800" in str(caught.value)
    assert "Pass template=, one with generation marks" in str(caught.value)
    marked = write_template(tmp_path, MARKED)
    features = chat(parameters, long_chat, template=marked)
    assert training_texts(parameters, features) == ["it is 4.<|im_end|>"] * 600


def test_renderings_of_a_chat_share_a_budget_of_work(
    parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template that loops within a rendering's budget would take hours for all turns."""
    turns = [{"role": role, "content": "it is 4."} for role in ("user", "assistant")]
    monkeypatch.setattr(chat_module, "MAX_CHAT_WORK", 2**17)
    assert chat(parameters, turns).columns["n_trained"] > 0
    with refusal(Unusable, what="template", given="renderings of 40 messages", accepted=2**17):
        chat(parameters, turns * 20)


SKIPS_TEXTS = (
    "{%- for message in messages %}{{ message.role }}:"
    "{%- for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}\n"
    "{%- endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
WRITES_LISTS = (
    "{%- for message in messages %}{{ message.role }}:{{ message.content }}\n{% endfor %}"
    "{%- if add_generation_prompt %}assistant:{% endif %}"
)


def test_content_that_the_template_skips_or_writes_as_python_is_refused(
    parameters: dict[str, Any], tmp_path: Path
) -> None:
    def with_parts(text: str) -> list[dict[str, str]]:
        return [{"type": "text", "text": text}]

    parts = [{**message, "content": with_parts(message["content"])} for message in MESSAGES]
    takes_parts = write_template(tmp_path, SKIPS_TEXTS)
    with refusal(Unusable, what="template", where="message 1", given="text"):
        chat(parameters, template=takes_parts)
    assert training_texts(parameters, chat(parameters, parts, template=takes_parts))[0] == "it is 4.  "

    read_template.cache_clear()
    takes_texts = write_template(tmp_path, WRITES_LISTS)
    assert chat(parameters, template=takes_texts).columns["n_trained"] > 0
    with refusal(Unusable, what="template", where="message 1", given="list"):
        chat(parameters, parts, template=takes_texts)


def test_template_with_a_date_is_refused(parameters: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="pass template=, one without it"):
        chat(parameters, template=write_template(tmp_path, "{{ strftime_now('%Y') }}"))


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (
            b"{{ " + b"(" * 5_000 + b"1" + b")" * 5_000 + b" }}",
            {"what": "template syntax", "given": "RecursionError"},
        ),
        (
            b"{% if 1 %}" * 5_000 + b"{% endif %}" * 5_000,
            {"what": "template syntax", "given": "RecursionError"},
        ),
        (
            b"{% for i in [1] %}" * 90 + b"x" + b"{% endfor %}" * 90,
            {"what": "template syntax", "given": "SyntaxError"},
        ),
        (
            b"{{ [1] | batch(10 ** 9, 'x') | list }}",
            {"what": "template syntax", "given": "TemplateAssertionError"},
        ),
        (b"x" * 2**20 + b"y", {"what": "template syntax", "given": "TemplateSyntaxError"}),
        (b"x" * (2**24 + 1), {"what": "size", "given": 16777217}),
        (b"caf\xc3", {"what": "UTF-8"}),
    ],
    ids=["brackets", "conditions", "loops", "filter", "long", "huge", "bytes"],
)
def test_template_that_cannot_be_used_is_named(
    parameters: dict[str, Any], tmp_path: Path, source: bytes, fault: dict[str, object]
) -> None:
    path = tmp_path / "template.jinja"
    path.write_bytes(source)
    with refusal(InvalidSpec, **fault) as caught:
        _ = make("tokens", chat="json", template=str(path), **parameters).version
    assert len(str(caught.value)) < 1_000


def test_settings_that_are_deep_are_named(parameters: dict[str, Any], tmp_path: Path) -> None:
    alone = tmp_path / "tokenizer.json"
    alone.write_bytes(Path(parameters["tokenizer"]).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": ' + "[" * 100_000)
    with refusal(InvalidSpec, what="JSON", where=tmp_path / "tokenizer_config.json"):
        _ = make("tokens", chat="json", **{**parameters, "tokenizer": str(alone)}).version


NO_PROMPT_BEHIND_TOOLS = STOCK.replace(
    "if add_generation_prompt", "if add_generation_prompt and messages[-1].role != 'tool'"
)


def test_template_with_a_generation_prompt_in_some_places_is_refused(
    parameters: dict[str, Any], tmp_path: Path
) -> None:
    template = write_template(tmp_path, NO_PROMPT_BEHIND_TOOLS)
    assert chat(parameters, template=template).columns["n_trained"] > 0
    tool = {"role": "tool", "content": "4"}
    with refusal(Unusable, what="template", where="messages 2 and 4"):
        chat(parameters, [*MESSAGES[:3], tool, MESSAGES[4]], template=template)


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_have_every_name_that_templates_read(
    parameters: dict[str, Any], tmp_path: Path, name: str
) -> None:
    template = write_template(
        tmp_path,
        "{%- for message in messages %}{{ message.role }}:"
        "{{ message.reasoning_content or '' }}{{ message.thinking or '' }}{{ message.content }};{% endfor %}"
        "{%- if add_generation_prompt %}assistant:{% endif %}",
    )
    messages = [MESSAGES[1], {**MESSAGES[2], name: "add"}]
    assert training_texts(parameters, chat(parameters, messages, template=template)) == ["addaddit is 4.  ;"]


def test_special_token_in_tools_and_in_a_key_is_refused(parameters: dict[str, Any]) -> None:
    for tools, token in (([{"name": "a<|im_start|>b"}], "<|im_start|>"), ([{"<|im_end|>": 1}], "<|im_end|>")):
        with refusal(Unusable, what="special_token", where="tools", given=token):
            chat(parameters, tools=tools)


def test_version_follows_the_template(parameters: dict[str, Any], tmp_path: Path) -> None:
    stock = make("tokens", chat="json", **parameters).version
    marked = make("tokens", chat="json", template=write_template(tmp_path, MARKED), **parameters).version
    assert marked != stock
    assert make("tokens", **parameters).version not in (stock, marked)


def test_settings_beside_the_tokenizer_may_hold_large_numbers_and_must_be_json(
    parameters: dict[str, Any], tmp_path: Path
) -> None:
    alone = tmp_path / "tokenizer.json"
    alone.write_bytes(Path(parameters["tokenizer"]).read_bytes())
    elsewhere = {**parameters, "tokenizer": str(alone)}
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text(
        json.dumps({"model_max_length": 10**30, "chat_template": [{"name": "default", "template": STOCK}]})
    )
    assert make("tokens", chat="json", **elsewhere).version
    read_template.cache_clear()
    settings.write_text('{"chat_template": ')
    with refusal(InvalidSpec, what="JSON", where=settings):
        _ = make("tokens", chat="json", **elsewhere).version
    read_template.cache_clear()


def test_missing_or_broken_template_is_named(parameters: dict[str, Any], tmp_path: Path) -> None:
    alone = tmp_path / "tokenizer.json"
    alone.write_bytes(Path(parameters["tokenizer"]).read_bytes())
    elsewhere = {**parameters, "tokenizer": str(alone)}
    with refusal(InvalidSpec, what="template", where=alone):
        _ = make("tokens", chat="json", **elsewhere).version
    broken = write_template(tmp_path, "{% for %}")
    with refusal(InvalidSpec, what="template syntax", where=alone, given="TemplateSyntaxError"):
        _ = make("tokens", chat="json", template=broken, **elsewhere).version
    (tmp_path / "chat_template.jinja").write_text(STOCK)
    assert make("tokens", chat="json", **elsewhere).version
