"""Bounds on an SQL expression's cost, computed from its tokens before polars sees it.

polars copies operands: X BETWEEN a AND b holds X twice, so thirty nested ones never end. Functions make text: nested
`replace` multiplies it. One pass over the tokens bounds both, in O(tokens). The parsed expression cannot be measured:
its size is the cost in question.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...limits import MAX_EXPRESSION_COPIES, MAX_MADE_CHARACTERS, beyond

_COPIES = {
    "ARRAY_GET": 7, "CORR": 3, "DAYOFWEEK": 2, "LEFT": 5, "LISTAGG": 4, "LPAD": 2, "NULLIF": 2, "RIGHT": 5, "RPAD": 2,
    "SPLIT_PART": 5, "STRING_AGG": 4, "SUBSTR": 3, "SUBSTRING": 3,
}  # fmt: skip
"""Functions whose operands polars 2.1 copies, and how often, measured ten deep."""

_SHORT = frozenset(
    ("ARRAY_CONTAINS", "ARRAY_LENGTH", "BIT_LENGTH", "CHARACTER_LENGTH", "CHAR_LENGTH", "COUNT", "ENDS_WITH")
)
_SHORT |= {"LENGTH", "OCTET_LENGTH", "POSITION", "REGEXP_LIKE", "STARTS_WITH", "STRPOS"}
"""Functions of text whose result is a number or a truth value."""
_OF_ALL_ROWS = frozenset(("ARRAY_AGG", "LISTAGG", "STRING_AGG"))
"""Functions whose result holds all rows' values."""
_ALL_ROWS = 10**9

_CLOSES = {")": "(", "]": "["}


class TooCostly(ValueError):
    """An expression beyond a limit: names the function, value and limit."""


@dataclass(slots=True)
class _Argument:
    """An argument of a call, or a bracket's content."""

    copies: int = 0
    """Words and operators after copying, of complete comparisons."""
    characters: int = 0
    """Most characters of its text per character of a row."""
    tokens: list[tuple[str, str]] = field(default_factory=list)
    segment: int = 0
    """`copies` of the current comparison, which a BETWEEN may copy."""
    operands: list[int] = field(default_factory=list)
    """`characters` of each operand of that comparison."""
    joined: str = ""
    """Text-joining operators between them: "|" or "+"."""
    open_betweens: int = 0
    """BETWEEN whose AND is still to come."""

    def add(self, copies: int, characters: int) -> None:
        self.segment += copies
        self.operands.append(characters)


@dataclass(slots=True)
class _Frame:
    """An open bracket with the name before it, or a CASE; first the whole expression."""

    name: str
    bracket: str
    arguments: list[_Argument] = field(default_factory=lambda: [_Argument()])
    operand: int | None = None
    """`copies` of the value that a CASE compares with each WHEN."""


class _Cost:
    """The cost of an expression so far."""

    def __init__(self) -> None:
        self._frames = [_Frame("", "")]
        self._characters_made = 0

    def read(self, kind: str, token: str, name: str) -> None:
        frame = self._frames[-1]
        argument = frame.arguments[-1]
        opens = kind in ("bracket", "operator") and token in ("(", "[")
        if token not in (")", "]", ","):
            argument.tokens.append((kind, token))
        if opens or (kind == "word" and token == "CASE"):
            if name and argument.operands:
                argument.operands.pop()  # the function's name, which is no column
            self._frames.append(_Frame(name if opens else token, token))
        elif _CLOSES.get(token, "") == frame.bracket != "" or (
            kind == "word" and token == "END" and frame.bracket == "CASE"
        ):
            self._close()
        elif kind == "operator" and token == ",":
            self._end_segment(argument)
            frame.arguments.append(_Argument())
        else:
            self._take(frame, argument, kind, token)

    def finish(self) -> None:
        while len(self._frames) > 1:
            self._close()
        self._copies_of(self._frames[0])

    def _take(self, frame: _Frame, argument: _Argument, kind: str, token: str) -> None:
        word = token if kind == "word" else ""
        if word in ("AND", "OR") and not (word == "AND" and argument.open_betweens):
            self._end_segment(argument)
        elif word in ("WHEN", "THEN", "ELSE") and frame.bracket == "CASE":
            self._end_segment(argument)
            if word == "WHEN":
                frame.operand = argument.copies if frame.operand is None else frame.operand
                argument.copies += frame.operand
        elif word == "AND":
            argument.open_betweens -= 1
        elif word == "BETWEEN":
            argument.segment *= 2
            argument.open_betweens += 1
        elif word == "OVER" and max(argument.operands, default=0) >= _ALL_ROWS:
            raise TooCostly("array_agg, listagg or string_agg with OVER holds all rows once per row")
        elif kind == "operator":
            argument.joined += token if token in "|+" else ""
        elif kind == "text":
            argument.operands.append(len(token) - 2)
        elif kind in ("word", "name"):
            argument.operands.append(1)
        argument.segment += kind in ("word", "operator")

    def _end_segment(self, argument: _Argument) -> None:
        characters = (sum if argument.joined else max)(argument.operands or [0])
        if argument.joined:
            self._check_characters("|| or +", characters)
            self._characters_made += characters if "|" in argument.joined else 0  # numbers are added by + too
        argument.characters = max(argument.characters, characters)
        argument.copies += argument.segment
        argument.segment, argument.operands, argument.joined, argument.open_betweens = 0, [], "", 0
        self._check_characters("all functions together", self._characters_made)

    def _close(self) -> None:
        frame = self._frames.pop()
        copies = self._copies_of(frame)
        characters, is_made = _characters_of(frame)
        if frame.name and frame.name not in _OF_ALL_ROWS:
            self._check_characters(f"{frame.name.lower()}(...)", characters)
        self._characters_made += characters if is_made else 0
        self._check_characters("all functions together", self._characters_made)
        self._frames[-1].arguments[-1].add(copies, characters)

    def _copies_of(self, frame: _Frame) -> int:
        for argument in frame.arguments:
            self._end_segment(argument)
        copies = sum(one.copies for one in frame.arguments) * _COPIES.get(frame.name, 1)
        if copies > MAX_EXPRESSION_COPIES:
            raise TooCostly(
                beyond(
                    "with the operands that polars copies (of BETWEEN, CASE, "
                    f"{', '.join(name.lower() for name in _COPIES)}) it has",
                    copies,
                    "words and operators",
                    MAX_EXPRESSION_COPIES,
                    "Nest fewer of them",
                )
            )
        return copies

    def _check_characters(self, what: str, characters: int) -> None:
        if characters > MAX_MADE_CHARACTERS:
            raise TooCostly(
                beyond(
                    f"{what} may make, of one character of a row",
                    characters,
                    "characters",
                    MAX_MADE_CHARACTERS,
                    "Write shorter texts, or fewer functions inside one another",
                )
            )


def check_cost(tokens: Sequence[tuple[str, str]]) -> None:
    """Raise TooCostly for an expression beyond the limits. tokens: from `tokens_of`."""
    cost, before = _Cost(), ("", "")
    for kind, token in tokens:
        cost.read(kind, token, before[1] if token == "(" and before[0] == "word" else "")
        before = kind, token
    cost.finish()


def _characters_of(frame: _Frame) -> tuple[int, bool]:
    """Return the characters of a value per character of a row, and whether its function makes text."""
    name, characters = frame.name, [one.characters for one in frame.arguments]
    if name == "CONCAT" or frame.bracket == "[":
        return sum(characters), True
    if name == "CONCAT_WS":
        return sum(characters[1:]) + characters[0] * max(0, len(characters) - 2), True
    if name in ("LPAD", "RPAD"):
        return max(characters[0], int(_literal(frame, 1, "number"))), True
    if name in ("REPLACE", "REGEXP_REPLACE"):
        width = len(_literal(frame, 2, "text")) - 2
        return characters[0] * max(1, width), width > 1
    if name == "ARRAY_TO_STRING":
        return characters[0] * (len(_literal(frame, 1, "text")) - 1), True
    if name in _OF_ALL_ROWS:
        return _ALL_ROWS, False
    return 0 if name in _SHORT else max(characters), False


def _literal(frame: _Frame, at: int, kind: str) -> str:
    """Return an argument's literal; "0" or "''" without one, which polars refuses."""
    if at >= len(frame.arguments):
        return "0" if kind == "number" else "''"
    tokens = frame.arguments[at].tokens
    if [one for one, _ in tokens] != [kind] or len(tokens[0][1]) > 1000:
        shown = " ".join(token for _, token in tokens)[:60].lower()
        accepted = "a whole number" if kind == "number" else "a text in single quotes"
        raise TooCostly(
            f"argument {at + 1} of {frame.name.lower()}(...) is {shown!r}; accepted is {accepted} of up to "
            f"{MAX_MADE_CHARACTERS} characters"
        )
    return tokens[0][1]
