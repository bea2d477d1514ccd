"""Import JSON, uncompressed or compressed: an array of objects, or concatenated objects; each is a sample.

The file is read forward; memory holds one object and one chunk. A `*.json` file may also be JSON lines, as Spark
writes.
"""

import codecs
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from loader.errors import Corrupt, InvalidSample
from loader.limits import MAX_JSON_CHARACTERS, beyond
from loader.storage import ObjectInfo, Store

from ..importing.importer import ColumnarOptions, ImportRun, Readable, ReadSample
from ..reading.object_file import ObjectFile, opened
from .jsonl_import import COMPRESSED, DECODER, chunks, sample_of

OPTIONS = frozenset({"key", "fields"})
_ENDINGS = tuple(f".json{more}" for more in ("", *COMPRESSED))
_SPACE = " \t\r\n"
_NEAR = 16
"""A parse error this near the end, in characters, may only mean that more must be read."""


def find_objects(store: Store, infos: list[ObjectInfo], options: ColumnarOptions) -> Readable:
    """Return the JSON objects, one run each."""
    files = [info for info in infos if info.key.lower().endswith(_ENDINGS)]
    return Readable(
        files, lambda info: [ImportRun(info, nbytes=info.nbytes)], partial(_samples, store, options)
    )


def _samples(store: Store, options: ColumnarOptions, run: ImportRun) -> Iterator[ReadSample]:
    with opened(store, run.info) as file:
        text = _Text(file)
        for row, values in enumerate(text.values()):
            if not isinstance(values, dict):
                raise InvalidSample(
                    f"{run.info.key}, row {row} is a {type(values).__name__}; accepted are an array of objects, and "
                    "objects one behind the other"
                )
            if row == 0 and not text.is_array and (name := _list_of_objects(values)) and text.is_at_end():
                raise InvalidSample(
                    f"{run.info.key} is one object, whose {name!r} is a list of objects; accepted are an array of "
                    f"objects, and JSON lines: write that list (jq .{name}), or leave the file out (--exclude)"
                )
            yield sample_of(values, options, run.info.key, row)


def _list_of_objects(values: dict[str, Any]) -> str:
    lists = {name: one for name, one in values.items() if isinstance(one, list) and one}
    return next((name for name, one in lists.items() if isinstance(one[0], dict)), "")


class _Text:
    def __init__(self, file: ObjectFile) -> None:
        self._name, self._chunks = file.path, chunks(file)
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._ended = "", 0, False
        self.is_array = False
        """True if the text is an array; set once the first value is requested."""

    def values(self) -> Iterator[Any]:
        self.is_array = self._next() == "["
        if self.is_array:
            self._at += 1
            if self._next() == "]":
                return self._end()
        row = 0
        while self._next():
            yield self._value(row)
            row += 1
            character = self._next()
            if self.is_array and character == "]":
                return self._end()
            if self.is_array and character == ",":
                self._at += 1
            elif self.is_array and character:
                raise InvalidSample(
                    f"{self._name}, row {row} is not JSON: {character!r} in place of a comma; repair it"
                )
        if self.is_array:
            raise Corrupt(f"{self._name} is cut: its array has {row} values, and does not end")

    def is_at_end(self) -> bool:
        return not self._next()

    def _end(self) -> None:
        self._at += 1
        if character := self._next():
            raise InvalidSample(
                f"{self._name} is not JSON: {character!r} behind the end of its array; repair it"
            )

    def _value(self, row: int) -> Any:
        more = 1
        while True:
            try:
                value, self._at = DECODER.raw_decode(self._text, self._at)
                return value
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _NEAR
                if self._ended or not cut:
                    raise self._damaged(row, error.msg) from error
            except (ValueError, RecursionError) as error:
                raise self._damaged(row, str(error)) from error
            if (n := len(self._text) - self._at) > MAX_JSON_CHARACTERS:
                what, advice = f"{self._name}, row {row}", "Keep what is large in other files"
                raise InvalidSample(beyond(what, n, "characters", MAX_JSON_CHARACTERS, advice))
            # Doubles each time, so that a large value is not parsed again for every chunk.
            for _ in range(more):
                self._read()
            more *= 2

    def _damaged(self, row: int, why: str) -> InvalidSample:
        cut = ", or the file is cut" if self._ended else ""
        return InvalidSample(f"{self._name}, row {row} is not JSON: {why}; repair it{cut}")

    def _next(self) -> str:
        """Return the next character that is no white space, without consuming it; "" at the end."""
        while True:
            while self._at < len(self._text):
                if (character := self._text[self._at]) not in _SPACE:
                    return character
                self._at += 1
            if self._ended:
                return ""
            self._read()

    def _read(self) -> None:
        if self._ended:
            return
        data = next(self._chunks, b"")
        self._ended = not data
        try:
            read = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            raise InvalidSample(f"{self._name} is not UTF-8: {error.reason}; write it again") from error
        self._text, self._at = self._text[self._at :] + read, 0
