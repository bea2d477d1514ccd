"""Documents: a text file, or each line of a JSON Lines file. UTF-8, unchanged but for a leading BOM.

A line without a text may hold a chat: `messages`, and `tools`. Its document is the readable chat; its facts hold the
messages as they are, for the featurizer `tokens` with `chat="document.json"`.
"""

import codecs
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .media_table import Row
from .policy import CutPolicy
from .unit import Unit, dropped, rejected

MAX_TEXT_BYTES = 16 * 2**20
"""Most bytes of a document or JSON line."""

MAX_DOCUMENTS = 100_000
"""Most documents per file."""

TEXT_KEYS = ("text", "content")
"""Keys of a JSON line that may hold its document."""

CHAT_KEYS = ("messages", "tools")
"""Keys of a JSON line with a chat."""

Document = tuple[int, str, dict[str, Any]]
"""(line number from 1, or 0 for the whole file; text; the line's other values)."""


def cut_text(path: str, scratch: Path, policy: CutPolicy) -> list[Unit]:
    """Return units with the fields `txt` and `json`.

    Raises: Unusable if the file is not UTF-8, too long, blank, or JSON without a text.
    """
    return [
        Unit(
            start=f"line {number}" if number else "",
            fields={"txt": text, "json": _facts(number, extra)},
            metadata={"n_chars": len(text), "n_bytes": len(text.encode())},
        )
        for number, text, extra in documents(path)
    ]


def _facts(line: int, extra: dict[str, Any]) -> dict[str, Any]:
    """Return the `json` of a document: its line, its chat if it has one, and its other names under `raw`."""
    raw = dict(extra)
    facts = {"raw": raw, "line": line}
    for name in CHAT_KEYS:
        if name in raw:
            facts[name] = raw.pop(name)
    return facts


def audit_text(path: str) -> Row:
    """Return a text file's columns of the media table. Raises: Unusable."""
    lengths = [len(text) for _, text, _ in documents(path)]
    return {
        "container": "jsonl" if is_json(path) else "text",
        "n_documents": len(lengths),
        "n_chars": sum(lengths),
    }


def documents(path: str) -> Iterator[Document]:
    """Yield every non-blank document. Raises: Unusable, also if all are blank."""
    n_documents = 0
    for number, text, extra in _lines_of_json(path) if is_json(path) else _whole(path):
        if text.strip():
            n_documents += 1
            if n_documents > MAX_DOCUMENTS:
                raise rejected(
                    "probe",
                    "too_many_documents",
                    f"more than {MAX_DOCUMENTS} in one file; split it",
                    given=n_documents,
                    accepted=MAX_DOCUMENTS,
                )
            yield number, text, extra
    if not n_documents:
        raise rejected("probe", "blank", "there is nothing but blanks in it")


def is_json(path: str) -> bool:
    """Return whether the file starts with a JSON object."""
    with open(path, "rb") as file:
        return file.read(4096).removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{"


def _whole(path: str) -> Iterator[Document]:
    """Yield a plain text as one document, line 0. Raises: Unusable."""
    nbytes = os.path.getsize(path)
    if nbytes > MAX_TEXT_BYTES:
        raise rejected(
            "probe",
            "too_long",
            f"a document of {nbytes} bytes; at most {MAX_TEXT_BYTES}",
            where="document",
            given=nbytes,
            accepted=MAX_TEXT_BYTES,
        )
    with open(path, "rb") as file:
        yield 0, _decode_line(file.read().removeprefix(codecs.BOM_UTF8), 0), {}


def _lines_of_json(path: str) -> Iterator[Document]:
    """Yield the document of each line that is not blank. Raises: Unusable."""
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(MAX_TEXT_BYTES + 1):
            number += 1
            if len(line) > MAX_TEXT_BYTES:
                raise rejected(
                    "probe",
                    "too_long",
                    f"line {number} has more than {MAX_TEXT_BYTES} bytes",
                    where=f"line {number}",
                    accepted=MAX_TEXT_BYTES,
                )
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                yield _document(_decode_line(line, number), number)


def _document(line: str, number: int) -> Document:
    """Return (number, text, other names) of a line of JSON. Raises: Unusable without a text or a chat."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        if number == 1 and line.lstrip().startswith("{"):  # an indented JSON file
            raise dropped("probe", "no_text", "JSON, but not one object per line") from error
        raise rejected("decode", "bad_json", f"line {number}: {error}", where=f"line {number}") from error
    if not isinstance(body, dict):
        raise rejected(
            "decode",
            "bad_json",
            f"line {number} is not a JSON object",
            where=f"line {number}",
            given=type(body).__name__,
        )
    for key in TEXT_KEYS:
        text = body.get(key)
        if isinstance(text, str):
            _check_text(text, number)
            # Without a chat: a line with a text is that text.
            del body[key]
            for name in CHAT_KEYS:
                body.pop(name, None)
            return number, text, body
    messages = body.get("messages")
    if isinstance(messages, list):
        stored = json.dumps(body, ensure_ascii=False)
        _check_text(stored, number)
        return number, _readable(messages), body
    accepted = ", ".join((*TEXT_KEYS, "messages"))
    raise dropped("probe", "no_text", f"line {number} has none of {accepted}")


def _check_text(text: str, line: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise rejected("decode", "not_utf8", f"line {line}: {error}") from error


def _readable(messages: list[Any]) -> str:
    """Return a chat for people and for searches. The tokens come from the messages themselves."""
    paragraphs = []
    for message in messages:
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        if isinstance(content, str) and content.strip():
            paragraphs.append(f"{message.get('role')}: {content}")
    return "\n\n".join(paragraphs)


def _decode_line(data: bytes, line: int) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        where = "byte"
        if line:
            where = f"line {line}, byte"
        raise rejected("decode", "not_utf8", f"{where} {error.start} is not UTF-8") from error
