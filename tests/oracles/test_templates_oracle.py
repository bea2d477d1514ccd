"""Stock chat templates of trl, version pinned in templates.txt, against transformers: the same tokens and masks.

trl has 41 stock templates, and for most a training template with marks. Where its text is the stock's, the marks say
what trl trains. penstock's mask is the same, less two things that a model never writes: what the generation prompt
already holds, and the blank after the last token of a turn.
"""

import hashlib
import json
import re
from collections import Counter

import numpy as np
import pytest

from assets.featurizers import make
from assets.media.unit import Unusable

pytestmark = pytest.mark.oracle

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "first"}}},
    },
}
PLAIN = [
    {"role": "user", "content": "what is 2 + 2?"},
    {"role": "assistant", "content": "it is 4."},
    {"role": "user", "content": "and 3 + 3, 語?"},
    {"role": "assistant", "content": "it is 6 \U0001f642."},
]
CHATS = {
    "plain": {"messages": PLAIN},
    "one turn": {"messages": PLAIN[:2]},
    "system": {"messages": [{"role": "system", "content": "be brief"}, *PLAIN]},
    "thoughts": {
        "messages": [
            PLAIN[0],
            {"role": "assistant", "content": "<think>\nadd them\n</think>\n\nit is 4."},
            PLAIN[2],
            {"role": "assistant", "content": "it is 6.", "reasoning_content": "add them"},
        ]
    },
    "reasoning": {"messages": [PLAIN[0], {**PLAIN[1], "reasoning": "add them"}]},
    "thinking": {"messages": [PLAIN[0], {**PLAIN[1], "thinking": "add them"}]},
    "tools": {
        "messages": [
            PLAIN[0],
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}],
            },
            {"role": "tool", "name": "add", "content": "4"},
            PLAIN[1],
        ],
        "tools": [TOOL],
    },
}
SPECIAL = re.compile(r"<[|\uff5c][^<>{}'\s]+[|\uff5c]>|<\w+_of_\w+>|</?s>|\[/?[A-Z_]+\]")
ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
"""Tokens of their own that texts may hold."""


@pytest.fixture(scope="session")
def templates(interpreters):
    """The folder of trl's templates."""
    (packages,) = interpreters("templates").parents[1].glob("lib/python3.*/site-packages")
    return packages / "trl/chat_templates"


@pytest.fixture(scope="session")
def tokenizer(templates, tmp_path_factory):
    """A byte-level BPE in which the special tokens of every template are tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    special_tokens = {"<s>", "</s>"}
    for path in templates.glob("*.jinja"):
        special_tokens.update(SPECIAL.findall(path.read_text()))
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        special_tokens=sorted(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator([message["content"] for message in PLAIN] * 20, trainer)
    library.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    library.save(str(path))
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    (path.parent / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="session")
def of_transformers(peer, templates, tokenizer):
    """(template, chat) -> transformers' ids, mask and turns, or its error."""
    chats = tokenizer.parent / "chats.json"
    chats.write_text(json.dumps(CHATS))
    lines = peer("templates", templates, tokenizer, chats)
    return {(line["template"], line["chat"]): line for line in lines}


@pytest.fixture(scope="session")
def of_penstock(templates, tokenizer):
    """(template, chat) -> ids and mask, or the rejection."""
    digest = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    results = {}
    for path in sorted(templates.glob("*.jinja")):
        featurizer = make("tokens", chat="json", tokenizer=str(tokenizer), sha256=digest, template=str(path))
        for name, chat in CHATS.items():
            try:
                features = featurizer("text", {"json": json.dumps(chat).encode()})
            except Unusable as error:
                results[path.stem, name] = error
            else:
                results[path.stem, name] = features.fields
    return results


def is_stock(name: str) -> bool:
    return not name.endswith("_training")


def reason(rejection: Unusable) -> str:
    """Return in a word why a chat is rejected."""
    for words, name in (
        ("does not continue", "earlier turns change"),
        ("is not in its text", "skips texts"),
        ("strftime_now", "date"),
        ("has no attribute 'text'", "skips texts"),
    ):
        if words in str(rejection):
            return name
    return f"{rejection.code}: {rejection}"


def test_stock_templates_are_counted_by_their_kind(templates, of_penstock, of_transformers):
    kinds: dict[str, set[str]] = {}
    for path in templates.glob("*.jinja"):
        if not is_stock(path.stem):
            continue
        result = of_penstock[path.stem, "plain"]
        if isinstance(result, Unusable):
            kind = reason(result)
        elif of_transformers[path.stem, "plain"]["mask"] is not None:
            kind = "marks"
        else:
            kind = "prefixes"
        kinds.setdefault(kind, set()).add(path.stem)
    counts = {kind: len(names) for kind, names in kinds.items()}
    assert sum(counts.values()) == 41
    assert counts == {"marks": 3, "prefixes": 22, "earlier turns change": 12, "date": 1, "skips texts": 3}


def test_tokens_are_those_of_transformers(of_penstock, of_transformers):
    """Whatever the template and chat: the tokens are the library's, or the chat is rejected."""
    outcomes: Counter[str] = Counter()
    for case, theirs in of_transformers.items():
        ours = of_penstock[case]
        if isinstance(ours, Unusable):
            assert ours.code in ("template", "untrained"), case
            outcomes["rejected"] += 1
            continue
        assert "error" not in theirs, (case, theirs)
        assert ours["tokens.npy"].tolist() == theirs["ids"], case
        if theirs["mask"] is not None:
            assert ours["mask.npy"].astype(int).tolist() == theirs["mask"], case
            outcomes["marks"] += 1
        else:
            outcomes["prefixes"] += 1
    assert outcomes == {"marks": 205, "prefixes": 170, "rejected": 129}


def test_masks_by_prefixes_are_trls_less_prompts_and_blanks(tokenizer, of_penstock, of_transformers):
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(tokenizer))
    special_ids = set(library.get_added_tokens_decoder())
    compared = set()
    for (template, chat), theirs in of_transformers.items():
        ours = of_penstock[template, chat]
        training = of_transformers.get((f"{template}_training", chat), {})
        is_same_text = training.get("ids") is not None and training["ids"] == theirs.get("ids")
        if isinstance(ours, Unusable) or theirs["mask"] is not None or not is_same_text:
            continue
        expected = np.array(training["mask"], bool)
        for before, with_prompt in theirs["turns"]:
            expected[before:with_prompt] = False
        for end in np.flatnonzero(expected & ~np.append(expected[1:], False)):
            text = library.decode([theirs["ids"][end]], skip_special_tokens=False)
            if text.isspace() and theirs["ids"][end - 1] in special_ids:
                expected[end] = False
        assert ours["mask.npy"].tolist() == expected.tolist(), (template, chat)
        compared.add(template)
    assert len(compared) == 24
