"""Render chats by a Jinja template, as transformers does: in a sandbox, without transformers and without network.

`{% generation %}` marks what the model writes. The extension puts a noncharacter at either end, which the reader of
the text removes again; a chat that contains one of them is refused.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from loader.json_text import DamagedJson, parse_json_object

GENERATION_START, GENERATION_END = "\ufdd0", "\ufdd1"
MAX_TEMPLATE_BYTES = 2**20
MAX_RENDERED_CHARACTERS = 64 * 2**20
MAX_POWER = 64
MAX_REPEATS = 10_000
"""Largest number by which a template may multiply a text or a list."""
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_GROWING_METHODS = frozenset(
    ("format", "format_map", "center", "ljust", "rjust", "zfill", "expandtabs", "translate")
)
"""Methods of texts by which a template of one line could fill the memory."""
_MARK = re.compile(r"\{%[-+]?\s*generation\b")


class TemplateFailed(Exception):
    """The template raised, or made too much text."""


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
    ) -> str:
        """Return the text, with noncharacters at marks. Raises: TemplateFailed."""
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
            for piece in _compile(self.source).generate(variables):
                pieces.append(piece)
                n_characters += len(piece)
                if n_characters > MAX_RENDERED_CHARACTERS:
                    raise TemplateFailed(f"it made more than {MAX_RENDERED_CHARACTERS:,} characters")
        except TemplateFailed:
            raise
        except Exception as error:  # whatever the template's code raises
            raise TemplateFailed(f"{type(error).__name__}: {error}") from error
        return "".join(pieces)


@lru_cache(maxsize=16)
def read_template(tokenizer: Path, template: str | None) -> ChatTemplate:
    """Return the template of a file, or the one beside the tokenizer. Raises: ValueError, which names the file."""
    settings = _read_settings(tokenizer.parent / "tokenizer_config.json")
    template_file = tokenizer.parent / "chat_template.jinja"
    source: Any = settings.get("chat_template")
    if isinstance(source, list):
        source = _named_template(source, "default")
    if template is not None:
        source = _read_text(Path(template))
    elif template_file.exists():
        source = _read_text(template_file)
    if not isinstance(source, str):
        raise ValueError(
            f"no chat template beside {str(tokenizer)!r} (chat_template.jinja, or chat_template in "
            "tokenizer_config.json); pass template=, the path of one"
        )
    chat_template = ChatTemplate(source=source, special_tokens=_special_tokens(settings))
    try:
        _compile(source)
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template of {str(tokenizer)!r} cannot be parsed: {error}") from error
    return chat_template


def _named_template(entries: list[Any], name: str) -> Any:
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
        raise ValueError(f"{str(path)!r} is not JSON: {error}") from error


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    if len(data) > 16 * MAX_TEMPLATE_BYTES:
        raise ValueError(f"{str(path)!r} has {len(data):,} bytes; at most {16 * MAX_TEMPLATE_BYTES:,}")
    return data.decode("utf-8")


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    texts = {}
    for name in _SPECIAL_TOKENS:
        token = settings.get(name)
        if isinstance(token, dict):  # an AddedToken
            token = token.get("content")
        if isinstance(token, str):
            texts[name] = token
    return texts


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        start = nodes.Output([nodes.TemplateData(GENERATION_START)], lineno=line)
        end = nodes.Output([nodes.TemplateData(GENERATION_END)], lineno=line)
        return [start, *body, end]


class _Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, which bounds `range` only: operators and methods that multiply text are bounded here."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def call_binop(
        self,
        context: Any,
        operator: str,
        first: Any,
        second: Any,
    ) -> Any:
        operands = (first, second)
        largest = 0
        for operand in operands:
            if isinstance(operand, int):
                largest = max(largest, abs(operand))
        has_sequence = any(isinstance(operand, str | list | tuple) for operand in operands)
        if operator == "%" and isinstance(first, str):
            raise jinja2.exceptions.SecurityError("texts are not formatted by % here; use ~")
        if operator == "**" and largest > MAX_POWER:
            raise jinja2.exceptions.SecurityError(f"a power above {MAX_POWER}")
        if operator == "*" and has_sequence and largest > MAX_REPEATS:
            raise jinja2.exceptions.SecurityError(f"a text or list times {largest}")
        return super().call_binop(context, operator, first, second)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        is_growing = isinstance(obj, str) and attr in _GROWING_METHODS
        return not is_growing and super().is_safe_attribute(obj, attr, value)


@lru_cache(maxsize=16)
def _compile(source: str) -> jinja2.Template:
    if len(source) > MAX_TEMPLATE_BYTES:
        raise jinja2.TemplateSyntaxError(f"{len(source):,} characters; at most {MAX_TEMPLATE_BYTES:,}", 1)
    sandbox = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    for name in ("center", "format", "indent", "xmlattr"):
        del sandbox.filters[name]  # each can multiply text
    sandbox.filters["tojson"] = _tojson
    sandbox.globals["raise_exception"] = _raise_exception
    # No clock: `strftime_now` would give other tokens on another day. Templates fall back to a fixed date.
    template: jinja2.Template = sandbox.from_string(source)
    return template


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))
