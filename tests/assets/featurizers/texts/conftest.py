"""Small tokenizers of both libraries, trained here, and a stock chat template beside one of them."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

SENTENCES = [
    "user asks: what is 2 + 2?",
    "assistant answers: it is 4.",
    "think first, then call the tool",
] * 20
SPECIAL_TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
STOCK = (
    "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""Only appends, and has no marks."""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="session")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def write_tokenizer(folder: Path) -> Path:
    """Write a byte-level BPE with special tokens; `tokenizer_config.json` has the stock template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    settings = {"chat_template": STOCK, "eos_token": {"content": "<|im_end|>"}}
    (path.parent / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="session")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        vocab_size=350,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    path = tmp_path_factory.mktemp("sentencepiece") / "tokenizer.model"
    path.write_bytes(model.getvalue())
    return path


@pytest.fixture
def parameters(tokenizer_json: Path) -> dict[str, Any]:
    return {"tokenizer": str(tokenizer_json), "sha256": sha256(tokenizer_json)}
