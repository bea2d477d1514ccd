"""The searched text of a field: a caption, the turns of a rollout, the language or the tasks of an episode."""

from ...json_text import DamagedJson, parse_json

MOST_TEXT_CHARACTERS = 4096
"""Characters of a text that are searched, from its beginning."""
MOST_FIELD_BYTES = 4 * 2**20
"""Larger JSON fields are not searched."""
LINE_FIELDS = ("turns.jsonl", "language.jsonl")
"""Fields with a JSON object in each line, whose member `text` is searched."""
TASK_FIELD = "episode.json"
"""Field whose `tasks` have a member `task` each."""


def is_text_field(name: str) -> bool:
    """Return whether words of a field are searched."""
    return name.endswith(".txt") or name in LINE_FIELDS or name == TASK_FIELD


def search_text(field: str, data: bytes) -> str | None:
    """Return the beginning of a field's text; None without one, such as for the zeros that a takedown leaves."""
    if field in LINE_FIELDS or field == TASK_FIELD:
        text = _json_text(field, data)
    else:
        # A character has at most four bytes.
        text = data[: 4 * MOST_TEXT_CHARACTERS].decode("utf-8", "ignore")
    if not text.strip("\0"):
        return None
    return text[:MOST_TEXT_CHARACTERS]


def _json_text(field: str, data: bytes) -> str:
    """Return the texts of a JSON field, a line each. Damaged lines have none."""
    if len(data) > MOST_FIELD_BYTES:
        return ""
    texts: list[str] = []
    n_characters = 0
    for line in _documents(field, data):
        try:
            body = parse_json(line)
        except DamagedJson:
            continue
        for text in _members(field, body):
            texts.append(text)
            n_characters += len(text)
        if n_characters > MOST_TEXT_CHARACTERS:
            break
    return "\n".join(texts)


def _documents(field: str, data: bytes) -> list[bytes]:
    if field == TASK_FIELD:
        return [data]
    return data.split(b"\n")


def _members(field: str, body: object) -> list[str]:
    """Return the texts of one JSON document."""
    name = "text"
    rows: object = [body]
    if field == TASK_FIELD:
        name = "task"
        rows = None
        if isinstance(body, dict):
            rows = body.get("tasks")
    if not isinstance(rows, list):
        return []
    values = [row.get(name) for row in rows if isinstance(row, dict)]
    return [value for value in values if isinstance(value, str)]
