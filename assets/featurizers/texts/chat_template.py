"""Render chats by a Jinja template, as transformers does: in a sandbox, without transformers and without network.

`{% generation %}` marks what the model writes. The sandbox puts a noncharacter at either end, which the reader of
the text removes again; a chat that contains one of them is refused.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from loader.errors import InvalidSpec
from loader.json_text import DamagedJson, parse_json_object

from .bounded_file import read_bounded
from .template_sandbox import TemplateSandbox, WorkBudget

MAX_TEMPLATE_BYTES = 2**20
MAX_SETTINGS_BYTES = 16 * 2**20
MAX_RENDERED_CHARACTERS = 64 * 2**20
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_MARK = re.compile(r"\{%[-+]?\s*generation\b")


class TemplateFailed(Exception):
    """The template raised, or made too much text. fields: where, given and accepted, as in `PenstockError`."""

    def __init__(self, reason: str, **fields: object) -> None:
        super().__init__(reason)
        self.fields = fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    source: str
    """Text of the template."""
    special_tokens: Mapping[str, str]
    """Variable, such as `eos_token` -> its text."""

    @property
    def has_marks(self) -> bool:
        """True if `{% generation %}` marks what the model writes."""
        return _MARK.search(self.source) is not None

    def identity(self) -> str:
        """Return text that differs if anything rendered may differ."""
        return json.dumps([self.source, dict(self.special_tokens)], sort_keys=True)

    def render(
        self,
        messages: Sequence[Any],
        tools: Sequence[Any] | None,
        *,
        add_generation_prompt: bool = False,
        budget: WorkBudget | None = None,
    ) -> str:
        """Return the text, with noncharacters at marks. budget: None for a new one. Raises: TemplateFailed."""
        variables: dict[str, Any] = {
            **self.special_tokens,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        pieces: list[str] = []
        n_characters = 0
        try:
            template = _compile(self.source)
            _SANDBOX.start(budget)
            for piece in template.generate(variables):
                pieces.append(piece)
                n_characters += len(piece)
                if n_characters > MAX_RENDERED_CHARACTERS:
                    raise TemplateFailed(
                        f"it made more than {MAX_RENDERED_CHARACTERS:,} characters",
                        given=n_characters,
                        accepted=MAX_RENDERED_CHARACTERS,
                    )
        except TemplateFailed:
            raise
        except Exception as error:  # whatever the template's code raises
            message = f"{type(error).__name__}: {error}"
            if "strftime_now" in message:
                message += ". The date would give other tokens on another day: pass template=, one without it"
            raise TemplateFailed(message, given=type(error).__name__) from error
        return "".join(pieces)


@lru_cache(maxsize=16)
def read_template(tokenizer: Path, template: str | None) -> ChatTemplate:
    """Return the template of a file, or the one beside the tokenizer. Raises: InvalidSpec, which names the file."""
    settings = _read_settings(tokenizer.parent / "tokenizer_config.json")
    template_file = tokenizer.parent / "chat_template.jinja"
    source: Any = settings.get("chat_template")
    if isinstance(source, list):
        source = _select_template(source, "default")
    if template is not None:
        source = _read_text(Path(template))
    elif template_file.exists():
        source = _read_text(template_file)
    if not isinstance(source, str):
        raise InvalidSpec(
            f"no chat template beside {str(tokenizer)!r} (chat_template.jinja, or chat_template in "
            "tokenizer_config.json); pass template=, the path of one",
            what="template",
            where=tokenizer,
            accepted="chat_template.jinja, or chat_template in tokenizer_config.json",
        )
    chat_template = ChatTemplate(source=source, special_tokens=_special_tokens(settings))
    try:
        _compile(source)
    except (
        jinja2.TemplateError,
        RecursionError,  # brackets or blocks in a thousand others, for jinja2's parser
        SyntaxError,  # a hundred blocks in others, for Python's
        MemoryError,  # the same, in some releases
    ) as error:
        raise InvalidSpec(
            f"the chat template of {str(tokenizer)!r} cannot be parsed: {error}",
            what="template syntax",
            where=tokenizer,
            given=type(error).__name__,
        ) from error
    return chat_template


def _select_template(entries: list[Any], name: str) -> Any:
    """Return a template of a list of {"name", "template"}; None if it has none of this name."""
    for entry in entries:
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry.get("template")
    return None


def _read_settings(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    text = _read_text(path)
    try:
        # Lenient: model_max_length is 10^30 in many of these files.
        return parse_json_object(text, lenient=True)
    except DamagedJson as error:
        raise InvalidSpec(
            f"{str(path)!r} is not JSON: {error}", what="JSON", where=path, given=str(error)
        ) from error


def _read_text(path: Path) -> str:
    data = read_bounded(path, repr(str(path)), MAX_SETTINGS_BYTES)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidSpec(
            f"{str(path)!r} is not UTF-8: {error}", what="UTF-8", where=path, given=str(error)
        ) from error


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    texts = {}
    for name in _SPECIAL_TOKENS:
        token = settings.get(name)
        if isinstance(token, dict):  # an AddedToken
            token = token.get("content")
        if isinstance(token, str):
            texts[name] = token
    return texts


_SANDBOX = TemplateSandbox()


@lru_cache(maxsize=16)
def _compile(source: str) -> jinja2.Template:
    if len(source) > MAX_TEMPLATE_BYTES:
        raise jinja2.TemplateSyntaxError(f"{len(source):,} characters; at most {MAX_TEMPLATE_BYTES:,}", 1)
    _SANDBOX.start()  # jinja2 computes constants when it compiles
    template: jinja2.Template = _SANDBOX.from_string(source)
    return template
