"""Read the tables of a LeRobot dataset's `meta/`: tasks, subtasks, and rows of episodes."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from loader.dataset.columnar.arrow_errors import arrow_errors
from loader.errors import Corrupt, InvalidStore, ObjectNotFound
from loader.json_text import parse_json
from loader.keywords import is_whole_number
from loader.storage import Store

from ...units import shorten_list

INFO = "meta/info.json"
SUBTASKS = "meta/subtasks.parquet"
SUBTASK_INDEX = "subtask_index"
"""Feature that indexes the texts of `SUBTASKS`."""


class Metadata(NamedTuple):
    """Texts and episodes according to `meta/`."""

    tasks: dict[int, str]
    """Task index -> text."""
    subtasks: dict[int, str]
    """Likewise, empty if there are none."""
    rows: list[dict[str, Any]]
    """Episodes, with `stats`."""
    notes: list[str]
    """Names of columns that are not read."""


def read_v2(store: Store, _keys: Collection[str]) -> Metadata:
    tasks = {}
    unread: set[str] = set()
    for number, line in enumerate(_lines(store, "meta/tasks.jsonl"), 1):
        text = line.get("task")
        if not isinstance(text, str):
            raise InvalidStore(
                f"{store.url}/meta/tasks.jsonl, line {number}: task {text!r:.80}; a text is needed"
            )
        tasks[whole_number(line, "task_index")] = text
        unread |= line.keys() - {"task", "task_index"}
    notes = []
    if unread:
        notes.append(_unread_note("meta/tasks.jsonl", unread))
    try:
        stats_lines = _lines(store, "meta/episodes_stats.jsonl")
    except ObjectNotFound:  # v2.0 has statistics only for the whole dataset
        stats_lines = []
    stats = {whole_number(line, "episode_index"): line.get("stats") for line in stats_lines}
    rows = []
    for row in _lines(store, "meta/episodes.jsonl"):
        index = whole_number(row, "episode_index")
        rows.append({**row, "stats": stats.get(index)})
    return Metadata(tasks, {}, rows, notes)


def read_v3(store: Store, keys: Collection[str]) -> Metadata:
    tasks, notes = _texts_by_index(store, "meta/tasks.parquet", "task")
    subtasks: dict[int, str] = {}
    if SUBTASKS in keys:
        subtasks, subtask_notes = _texts_by_index(store, SUBTASKS, "subtask")
        notes += subtask_notes
    rows = []
    for key in sorted(keys):
        if key.startswith("meta/episodes/") and key.endswith(".parquet"):
            table = _parquet(store, key)
            rows += [_with_stats(row) for row in table.to_pylist()]
    return Metadata(tasks, subtasks, rows, notes)


def _texts_by_index(store: Store, key: str, name: str) -> tuple[dict[int, str], list[str]]:
    """Return index -> text, and notes of other columns.

    name: "task", for a column `task_index`, and texts in the column `task`, else in the index of pandas.
    """
    table = _parquet(store, key)
    index = f"{name}_index"
    others = [column for column in table.column_names if column != index]
    # LeRobot stores texts as the unnamed index of a pandas frame, whose column name varies.
    candidates = [name, *_pandas_index(table), "__index_level_0__"]
    text_column = next((column for column in candidates if column in others), None)
    if text_column is None and len(others) == 1:
        text_column = others[0]
    if index not in table.column_names or text_column is None:
        columns = ", ".join(map(repr, table.column_names))
        raise InvalidStore(
            f"{store.url}/{key}: columns {columns}; the columns {index!r} and "
            f"{name!r} are needed, or the texts as the index of pandas",
            what="columns",
            where=f"{store.url}/{key}",
            given=columns,
            accepted=[index, name],
        )
    texts: dict[int, str] = {}
    numbers = table[index].to_pylist()
    values = table[text_column].to_pylist()
    for row, (number, text) in enumerate(zip(numbers, values, strict=True)):
        if type(number) is not int or not isinstance(text, str):
            raise InvalidStore(
                f"{store.url}/{key}, row {row}: {index} {number!r:.40}, {text_column} {text!r:.80}; a whole number "
                "and a text are needed",
                what=[index, text_column],
                where=f"{store.url}/{key}, row {row}",
                given=[number, text],
                accepted="a whole number and a text",
            )
        # Rows of this number would get one of the texts by chance.
        if texts.setdefault(number, text) != text:
            raise InvalidStore(
                f"{store.url}/{key}, row {row}: {index} {number} comes twice, with two texts",
                what=index,
                where=f"{store.url}/{key}, row {row}",
                given=number,
                accepted="one text",
            )
    unread = [column for column in others if column != text_column]
    if not unread:
        return texts, []
    return texts, [_unread_note(key, unread)]


def _pandas_index(table: Any) -> list[str]:
    """Return the columns that pandas reads as the index; none if its metadata is not readable."""
    try:
        pandas = table.schema.pandas_metadata
    except ValueError:  # no JSON, or no UTF-8
        return []
    if not isinstance(pandas, dict):
        return []
    columns = pandas.get("index_columns")
    if not isinstance(columns, list):
        return []
    return [name for name in columns if isinstance(name, str)]


def _unread_note(key: str, names: Collection[str]) -> str:
    return f"{key}: columns that are not read: {shorten_list(sorted(names))}"


def _with_stats(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its `stats/<feature>/<statistic>` columns as one object."""
    out: dict[str, Any] = {}
    stats: dict[str, dict[str, Any]] = {}
    for name, value in row.items():
        if not name.startswith("stats/"):
            out[name] = value
        elif value is not None:
            # From the right: names of features may contain "/".
            feature, _, statistic = name.removeprefix("stats/").rpartition("/")
            stats.setdefault(feature, {})[statistic] = value
    out["stats"] = stats or None
    return out


def whole_number(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if not is_whole_number(value, 0, 2**62 - 1):
        raise InvalidStore(
            f"meta/: {name} {value!r:.40}; a whole number from 0 on is needed",
            what=name,
            where="meta/",
            given=value,
            accepted="a whole number from 0 on",
        )
    return value


def json_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidStore(f"{where}: {value!r:.80}; a JSON object is needed")
    return value


def json_document(store: Store, key: str) -> Any:
    try:
        return parse_json(store.get(key).data, lenient=True)
    except (ValueError, RecursionError) as error:
        raise InvalidStore(
            f"{store.url}/{key}: {error}", where=f"{store.url}/{key}", accepted="JSON"
        ) from None
    except ObjectNotFound:
        raise InvalidStore(
            f"{store.url} has no {key}: name the folder of one LeRobot dataset", what=key, where=store.url
        ) from None


def _lines(store: Store, key: str) -> list[dict[str, Any]]:
    data = store.get(key).data
    lines = [line for line in data.splitlines() if line.strip()]
    try:
        return [json_object(parse_json(line, lenient=True), key) for line in lines]
    except (ValueError, RecursionError) as error:
        raise InvalidStore(f"{store.url}/{key}: {error}") from None


def _parquet(store: Store, key: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = store.get(key).data
    try:
        with arrow_errors(f"{store.url}/{key}"):
            return pq.read_table(pa.BufferReader(data), use_threads=False, pre_buffer=False)
    except Corrupt as error:
        raise InvalidStore(str(error)) from error
