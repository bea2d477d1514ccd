"""Tokenize a chat, and find the tokens that the assistant writes.

With `{% generation %}` marks, these decide. Otherwise a turn of the assistant is what its rendering adds to the
rendering before it, generation prompt included. That needs a template that only appends: of 41 stock templates, 22 do.
A template that drops earlier thoughts does not, and its chats are rejected instead of trained on in the wrong places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...media.unit import rejected
from ..decoding import STAGE
from .chat_template import ChatTemplate, TemplateFailed
from .template_sandbox import GENERATION_END, GENERATION_START, WorkBudget
from .tokenizer_file import TokenizerFile

MAX_RENDERED_MESSAGES = 10**6
"""Messages in all renderings of a chat without marks: 8 to 20 s. About 1,150 messages, as each turn takes three."""
MAX_CHAT_WORK = 2**33
"""Work of these renderings together: the bound of messages, with 8,000 characters of work each."""
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's thoughts; the first that it has counts."""
Spans = list[tuple[int, int]]
"""First character and end of each stretch that the assistant writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    messages: Sequence[Mapping[str, Any]]
    """At least one; the last may have any role."""
    tools: Sequence[Any] | None
    """JSON schemas of the functions, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedChat:
    ids: list[int]
    """Token ids."""
    mask: NDArray[np.bool_]
    """bool [n]: True for tokens that the assistant writes."""


def parse_chat(body: object) -> Chat:
    """Return the chat in a JSON object: {"messages", "tools"}; it may have other names. Raises: Unusable."""
    if not isinstance(body, Mapping):
        raise rejected(
            STAGE,
            "no_chat",
            "the JSON is not an object with messages",
            where="JSON",
            given=type(body).__name__,
        )
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise rejected(
            STAGE,
            "no_chat",
            f"messages is {messages!r:.80}; a list of messages is needed",
            where="messages",
            given=type(messages).__name__,
        )
    for number, message in enumerate(messages):
        role = None
        if isinstance(message, Mapping):
            role = message.get("role")
        if not isinstance(role, str):
            raise rejected(
                STAGE,
                "no_chat",
                f"message {number} is {message!r:.80}; a mapping with a role is needed",
                where=f"message {number}",
                given=type(message).__name__,
            )
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise rejected(
            STAGE,
            "no_chat",
            f"tools is {tools!r:.80}; a list is needed",
            where="tools",
            given=type(tools).__name__,
        )
    return Chat(messages=_with_reasoning_names(messages), tools=tools)


def _with_reasoning_names(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages whose thoughts have each name that templates read, as transformers fills them in."""
    renamed: list[Mapping[str, Any]] = []
    for message in messages:
        thoughts = [message[name] for name in _REASONING_NAMES if message.get(name) is not None]
        if thoughts:
            names = {"thinking": thoughts[0], **message, "reasoning_content": thoughts[0]}
            renamed.append(names)
        else:
            renamed.append(message)
    return renamed


def tokenize_chat(
    chat: Chat,
    template: ChatTemplate,
    tokenizer: TokenizerFile,
) -> TokenizedChat:
    """Return the tokens of a chat, with the mask of those to train on. Raises: Unusable."""
    _check_texts(chat, tokenizer)
    try:
        if template.has_marks:
            text, spans = _parse_marks(chat, template)
        else:
            text, spans = _prefix_spans(chat, template, tokenizer)
        _check_contents(chat, text)
    except TemplateFailed as error:
        reason = f"the chat template refused it: {error}"
        raise rejected(STAGE, "template", reason, None, **error.fields) from error

    tokens = tokenizer.encode_template(text)
    mask = _overlaps(tokens.spans, spans)
    if not mask.any():
        raise rejected(STAGE, "untrained", "the assistant writes no token of it")
    return TokenizedChat(ids=tokens.ids, mask=mask)


def _overlaps(token_spans: NDArray[np.int64], spans: Spans) -> NDArray[np.bool_]:
    """Return bool [n]: whether a token has a character of a span. token_spans: int64 [n, 2]: first character and end.

    A loop over 100,000 turns of a sample would take minutes.
    """
    bounds = np.array(spans, np.int64).reshape(-1, 2)
    span_starts = np.sort(bounds[:, 0])
    span_ends = np.sort(bounds[:, 1])
    n_begun = np.searchsorted(
        span_starts, token_spans[:, 1], side="left"
    )  # [n]: spans that begin before its end
    n_ended = np.searchsorted(span_ends, token_spans[:, 0], side="right")  # [n]: spans that end before it
    is_in_span: NDArray[np.bool_] = n_begun > n_ended
    return is_in_span


def _check_texts(chat: Chat, tokenizer: TokenizerFile) -> None:
    """Reject texts that would become part of the template: special tokens, and the noncharacters of marks."""
    reserved = [*tokenizer.special_tokens, GENERATION_START, GENERATION_END]
    for number, message in enumerate(chat.messages):
        _check_text(f"message {number}", message, reserved)
    _check_text("tools", chat.tools, reserved)


def _check_text(
    where: str,
    value: Any,
    reserved: Sequence[str],
) -> None:
    """Check all texts in a message or in the tools, keys of mappings included."""
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, Mapping):
            pending.extend(part.keys())
            pending.extend(part.values())
        elif isinstance(part, list):
            pending.extend(part)
        elif isinstance(part, str):
            _check_string(where, part, reserved)


def _check_string(
    where: str,
    text: str,
    reserved: Sequence[str],
) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can hold
        raise rejected(STAGE, "undecodable", f"{where}: {error}", where=where, given=str(error)) from error
    for token in reserved:
        if token in text:
            raise rejected(
                STAGE,
                "special_token",
                f"{where} contains {token!r}, which would end or begin a turn; remove it from the text",
                where=where,
                given=token,
            )


def _check_contents(chat: Chat, text: str) -> None:
    """Raise TemplateFailed if the text lacks a content: some templates of image models skip all but lists of parts."""
    position = 0
    for number, message in enumerate(chat.messages):
        if message["role"] not in ("user", "assistant"):
            continue
        content = message.get("content")
        if isinstance(content, list) and content and str(content) in text:
            raise TemplateFailed(
                f"it writes the list of message {number} as Python does; pass its content as one text",
                where=f"message {number}",
                given="list",
                accepted="text",
            )
        if not isinstance(content, str):
            continue
        # A template may drop thoughts, and blanks at both ends.
        _, _, answer = content.rpartition("</think>")
        stripped = answer.strip()
        # Behind the content before first: from the text's beginning, the searches of a long chat take minutes.
        place = text.find(stripped, position)
        if place < 0:
            place = text.find(stripped)
        if place < 0:
            raise TemplateFailed(
                f"the content of message {number} is not in its text. A template that takes parts only "
                'needs the content as a list, [{"type": "text", "text": ...}]',
                where=f"message {number}",
                given="text",
                accepted="list",
            )
        position = place


def _parse_marks(
    chat: Chat,
    template: ChatTemplate,
) -> tuple[str, Spans]:
    """Return the text without its marks, and what they enclosed."""
    rendered = template.render(chat.messages, chat.tools)
    text, *stretches = rendered.split(GENERATION_START)
    spans: Spans = []
    for stretch in stretches:
        generated, mark, rest = stretch.partition(GENERATION_END)
        if not mark or GENERATION_END in rest:
            raise TemplateFailed("a generation block in a generation block")
        start = len(text)
        text += generated
        spans.append((start, len(text)))
        text += rest
    return text, spans


def _check_n_messages(chat: Chat) -> None:
    """Reject a chat whose beginnings, three for each turn, have too many messages."""
    n_rendered = len(chat.messages)
    n_turns = 0
    for number, message in enumerate(chat.messages):
        if message["role"] == "assistant":
            n_turns += 1
            n_rendered += 3 * number + 1
    if n_rendered > MAX_RENDERED_MESSAGES:
        raise rejected(
            STAGE,
            "long_chat",
            f"its {len(chat.messages):,} messages, {n_turns:,} of the assistant, would be rendered as {n_rendered:,}, "
            f"because the template has no marks; at most {MAX_RENDERED_MESSAGES:,}. Pass template=, one with "
            "generation marks, or cut the chat",
            given=n_rendered,
            accepted=MAX_RENDERED_MESSAGES,
        )


class _ChatBeginnings:
    """Renders the beginnings of a chat, within one budget of work."""

    def __init__(self, chat: Chat, template: ChatTemplate) -> None:
        self._chat = chat
        self._template = template
        self._remaining = MAX_CHAT_WORK

    def render(
        self,
        n_messages: int,
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        """Return the text of the first messages. Raises: TemplateFailed."""
        budget = WorkBudget(self._remaining)
        try:
            text = self._template.render(
                self._chat.messages[:n_messages],
                self._chat.tools,
                add_generation_prompt=add_generation_prompt,
                budget=budget,
            )
        except TemplateFailed as error:
            # Below zero is the budget's end, but with all of a rendering's work the chat is not to blame.
            if budget.remaining < 0 and budget.limit == self._remaining:
                raise TemplateFailed(
                    "its renderings, three for each turn, do more work than a chat may. Pass template=, one "
                    "with generation marks, or cut the chat",
                    given=f"renderings of {len(self._chat.messages)} messages",
                    accepted=MAX_CHAT_WORK,
                ) from error
            raise
        self._remaining -= budget.limit - budget.remaining
        return text


def _prefix_spans(
    chat: Chat,
    template: ChatTemplate,
    tokenizer: TokenizerFile,
) -> tuple[str, Spans]:
    """Return the text, and what each turn of the assistant adds to the text before it."""
    _check_n_messages(chat)
    beginnings = _ChatBeginnings(chat, template)
    whole = beginnings.render(len(chat.messages))
    special_tokens = tuple(tokenizer.special_tokens)
    spans: Spans = []
    turns_by_prompt: dict[bool, int] = {}
    for number, message in enumerate(chat.messages):
        if message["role"] != "assistant":
            continue
        before = beginnings.render(number, add_generation_prompt=True)
        without_prompt = beginnings.render(number)
        after = beginnings.render(number + 1)
        is_appended = whole.startswith(after) and after.startswith(before)
        if not is_appended:
            raise TemplateFailed(
                f"message {number} does not continue the text before it, so the assistant's tokens are "
                "unknown. Pass template=, one with generation marks",
                where=f"message {number}",
            )
        # Some templates add a prompt after the user, and none after a tool: what begins that turn is unknown.
        has_prompt = before != without_prompt
        turns_by_prompt.setdefault(has_prompt, number)
        if len(turns_by_prompt) == 2:
            raise TemplateFailed(
                f"message {turns_by_prompt[True]} follows a generation prompt, message {turns_by_prompt[False]} none, "
                "so the assistant's tokens are unknown. Pass template=, one with generation marks",
                where=f"messages {turns_by_prompt[True]} and {turns_by_prompt[False]}",
            )
        start = len(before)
        end = len(after)
        # The blank after a turn's last token is the template's: a model stops at that token.
        without_blank = after.rstrip()
        if without_blank.endswith(special_tokens):
            end = max(start, len(without_blank))
        spans.append((start, end))
    return whole, spans
