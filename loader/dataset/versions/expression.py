"""Check SQL expressions on the samples table, and convert them to polars.

A plan's or view's expression is untrusted: while parsing, polars runs nested queries and reads files and addresses. So
the text is checked first, and only listed functions may be called.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...errors import FieldNotFound
from ...limits import MAX_EXPRESSION_COPIES, MAX_EXPRESSION_WORDS, MAX_MADE_CHARACTERS, limit_message

if TYPE_CHECKING:
    import polars


_COPIES = {
    "ARRAY_GET": 7, "CORR": 3, "DAYOFWEEK": 2, "LEFT": 5, "LISTAGG": 4, "LPAD": 2, "NULLIF": 2, "RIGHT": 5, "RPAD": 2,
    "SPLIT_PART": 5, "STRING_AGG": 4, "SUBSTR": 3, "SUBSTRING": 3,
}  # fmt: skip
"""Function -> how often polars 2.1 copies its operands, measured ten levels deep."""

_SHORT = frozenset(
    ("ARRAY_CONTAINS", "ARRAY_LENGTH", "BIT_LENGTH", "CHARACTER_LENGTH", "CHAR_LENGTH", "COUNT", "ENDS_WITH")
)
_SHORT |= {"LENGTH", "OCTET_LENGTH", "POSITION", "REGEXP_LIKE", "STARTS_WITH", "STRPOS"}
"""Functions of text that return a number or a truth value."""
_OF_ALL_ROWS = frozenset(("ARRAY_AGG", "LISTAGG", "STRING_AGG"))
"""Functions whose result contains all rows' values."""
_ALL_ROWS = 10**9

_CLOSES = {")": "(", "]": "["}


@dataclass(slots=True)
class _Argument:
    """The text between two commas of an open bracket, as far as it was read.

    AND, OR and the words of CASE divide it into comparisons. `_end_segment` adds the current comparison to the totals.
    """

    copies: int = 0
    """Words and operators, with copies, in complete comparisons."""
    characters: int = 0
    """Upper bound on characters of text per character of a row."""
    tokens: list[tuple[str, str]] = field(default_factory=list)
    segment: int = 0
    """`copies` for the current comparison, which a BETWEEN may copy."""
    operands: list[int] = field(default_factory=list)
    """`characters` per operand of that comparison."""
    joined: str = ""
    """Text-joining operators between the operands: "|" or "+"."""
    open_betweens: int = 0
    """Number of BETWEENs whose AND has not come yet."""

    def add(self, copies: int, characters: int) -> None:
        self.segment += copies
        self.operands.append(characters)


@dataclass(slots=True)
class _Frame:
    """An open bracket with the name before it, or a CASE. The first frame is the whole expression."""

    name: str
    bracket: str
    arguments: list[_Argument] = field(default_factory=lambda: [_Argument()])
    operand: int | None = None
    """`copies` for the value that a CASE compares with each WHEN."""


class _Cost:
    """Bounds on what polars makes of an expression: copies of operands, and characters of text per character of a row.

    `read` takes its tokens in order, then `finish` ends it. Both raise FieldNotFound beyond a limit.
    """

    def __init__(self) -> None:
        self._frames = [_Frame("", "")]
        self._characters_made = 0

    def read(self, kind: str, token: str, name: str) -> None:
        """Read a token. name: the word before an opening bracket, or ""."""
        frame = self._frames[-1]
        argument = frame.arguments[-1]
        opens_bracket = kind in ("bracket", "operator") and token in ("(", "[")
        opens_case = kind == "word" and token == "CASE"
        closing = _CLOSES.get(token, "")  # the bracket that it closes
        closes_bracket = closing != "" and closing == frame.bracket
        closes_case = kind == "word" and token == "END" and frame.bracket == "CASE"
        if token not in (")", "]", ","):
            argument.tokens.append((kind, token))
        if opens_bracket or opens_case:
            if name and argument.operands:
                argument.operands.pop()  # the function's name is not a column
            if opens_case:
                name = token
            self._frames.append(_Frame(name, token))
        elif closes_bracket or closes_case:
            self._close()
        elif kind == "operator" and token == ",":
            self._end_segment(argument)
            frame.arguments.append(_Argument())
        else:
            self._take(frame, argument, kind, token)

    def finish(self) -> None:
        while len(self._frames) > 1:
            self._close()
        self._count_copies(self._frames[0])

    def _take(self, frame: _Frame, argument: _Argument, kind: str, token: str) -> None:
        """Count a token that neither opens, closes nor divides a bracket."""
        word = ""
        if kind == "word":
            word = token
        ends_between = word == "AND" and argument.open_betweens > 0  # x BETWEEN low AND high
        if word in ("AND", "OR") and not ends_between:
            self._end_segment(argument)
        elif word in ("WHEN", "THEN", "ELSE") and frame.bracket == "CASE":
            self._end_segment(argument)
            if word == "WHEN":
                if frame.operand is None:  # the first WHEN: all before it is the value
                    frame.operand = argument.copies
                argument.copies += frame.operand
        elif ends_between:
            argument.open_betweens -= 1
        elif word == "BETWEEN":
            argument.segment *= 2
            argument.open_betweens += 1
        elif word == "OVER" and max(argument.operands, default=0) >= _ALL_ROWS:
            raise FieldNotFound(
                "array_agg, listagg or string_agg with OVER holds all rows once per row",
                where="OVER",
                given="array_agg, listagg or string_agg",
            )
        elif kind == "operator":
            if token in "|+":
                argument.joined += token
        elif kind == "text":
            argument.operands.append(len(token) - 2)
        elif kind in ("word", "name"):
            argument.operands.append(1)
        argument.segment += kind in ("word", "operator")

    def _end_segment(self, argument: _Argument) -> None:
        """Add the current comparison to the argument's totals, and begin the next one."""
        if argument.joined:
            characters = sum(argument.operands)
            self._check_characters("|| or +", characters)
            if "|" in argument.joined:  # numbers are added by + too
                self._characters_made += characters
        else:
            characters = max(argument.operands, default=0)
        argument.characters = max(argument.characters, characters)
        argument.copies += argument.segment
        argument.segment = 0
        argument.operands = []
        argument.joined = ""
        argument.open_betweens = 0
        self._check_characters("all functions together", self._characters_made)

    def _close(self) -> None:
        """Close the innermost bracket or CASE: to the one around it, it is an operand."""
        frame = self._frames.pop()
        copies = self._count_copies(frame)
        characters, is_made = _character_cost(frame)
        if frame.name and frame.name not in _OF_ALL_ROWS:
            self._check_characters(f"{frame.name.lower()}(...)", characters)
        if is_made:
            self._characters_made += characters
        self._check_characters("all functions together", self._characters_made)
        self._frames[-1].arguments[-1].add(copies, characters)

    def _count_copies(self, frame: _Frame) -> int:
        for argument in frame.arguments:
            self._end_segment(argument)
        copies = sum(one.copies for one in frame.arguments) * _COPIES.get(frame.name, 1)
        if copies > MAX_EXPRESSION_COPIES:
            raise FieldNotFound(
                limit_message(
                    "with the operands that polars copies (of BETWEEN, CASE, "
                    f"{', '.join(name.lower() for name in _COPIES)}) it has",
                    copies,
                    "words and operators",
                    MAX_EXPRESSION_COPIES,
                    "Nest fewer of them",
                ),
                where="copies",
                given=copies,
                accepted=MAX_EXPRESSION_COPIES,
            )
        return copies

    def _check_characters(self, where: str, characters: int) -> None:
        if characters > MAX_MADE_CHARACTERS:
            raise FieldNotFound(
                limit_message(
                    f"{where} may make, of one character of a row",
                    characters,
                    "characters",
                    MAX_MADE_CHARACTERS,
                    "Write shorter texts, or fewer functions inside one another",
                ),
                where=where,
                given=characters,
                accepted=MAX_MADE_CHARACTERS,
            )


def check_cost(tokens: Sequence[tuple[str, str]]) -> None:
    """Raise FieldNotFound if the expression exceeds a limit. tokens: from `sql_tokens`."""
    cost = _Cost()
    before = ("", "")
    for kind, token in tokens:
        name = ""
        if token == "(" and before[0] == "word":
            name = before[1]
        cost.read(kind, token, name)
        before = (kind, token)
    cost.finish()


def _character_cost(frame: _Frame) -> tuple[int, bool]:
    """Return (characters of a value per character of a row, whether its function returns text)."""
    name = frame.name
    characters = [argument.characters for argument in frame.arguments]
    if name == "CONCAT" or frame.bracket == "[":
        return sum(characters), True
    if name == "CONCAT_WS":
        separator, *values = characters
        n_separators = max(0, len(values) - 1)
        return sum(values) + separator * n_separators, True
    if name in ("LPAD", "RPAD"):
        return max(characters[0], int(_literal(frame, 1, "number"))), True
    if name in ("REPLACE", "REGEXP_REPLACE"):
        width = len(_literal(frame, 2, "text")) - 2
        return characters[0] * max(1, width), width > 1
    if name == "ARRAY_TO_STRING":
        return characters[0] * (len(_literal(frame, 1, "text")) - 1), True
    if name in _OF_ALL_ROWS:
        return _ALL_ROWS, False
    if name in _SHORT:
        return 0, False
    return max(characters), False


def _literal(frame: _Frame, at: int, kind: str) -> str:
    """Return an argument's literal; "0" or "''" if it has none, which polars rejects."""
    if at >= len(frame.arguments):
        if kind == "number":
            return "0"
        return "''"
    tokens = frame.arguments[at].tokens
    if [one for one, _ in tokens] != [kind] or len(tokens[0][1]) > 1000:
        shown = " ".join(token for _, token in tokens)[:60].lower()
        accepted = "a text in single quotes"
        if kind == "number":
            accepted = "a whole number"
        raise FieldNotFound(
            f"argument {at + 1} of {frame.name.lower()}(...) is {shown!r}; accepted is {accepted} of up to "
            f"{MAX_MADE_CHARACTERS} characters",
            where=f"argument {at + 1} of {frame.name.lower()}(...)",
            given=shown,
            accepted=accepted,
        )
    return tokens[0][1]


_FUNCTIONS = """
abs acos acosd asin asind atan atan2 atan2d atand cbrt ceil ceiling cos cosd cot cotd degrees div exp floor ln log log10
log1p log2 mod pi pow power radians round sign sin sind sqrt tan tand trunc truncate
coalesce greatest if ifnull least nullif
date date_part date_trunc datetime day dayofmonth dayofweek dayofyear hour minute month now quarter second
strftime strptime time timestamp week year
bit_and bit_count bit_length bit_not bit_or bit_xor bitcount char_length character_length concat concat_ws ends_with
initcap left length lower lpad ltrim normalize octet_length regexp_like regexp_replace replace reverse right
rpad rtrim split_part starts_with string_to_array strpos substr upper
array_contains array_dot_product array_get array_inner_product array_length array_lower array_mean array_reverse
array_sum array_to_string array_unique array_upper
approx_quantile array_agg avg corr count covar covar_pop covar_samp first last listagg max median min quantile_cont
quantile_disc stddev stddev_samp stdev stdev_samp string_agg sum var var_samp variance
cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number
"""
"""Functions that polars 1.30 to 2.1 supports by name and that return one value per row or group."""

_WORDS = """
all and any as between by case cast distinct div else escape extract filter from group ilike in is like not on or over
placing position regexp rlike safe_cast similar some substring then to trim try_cast when where xor
"""
"""Other words that may precede a bracket."""

_TYPES = """
binary char character datetime dec decimal double float int integer numeric real string text time timestamp varbinary
varchar varying
"""

_CALLED = frozenset((_FUNCTIONS + _WORDS + _TYPES).upper().split())
_VALUES = frozenset(("FALSE", "NULL", "TRUE"))
_TAKES_FROM = frozenset(("EXTRACT", "SUBSTR", "SUBSTRING", "TRIM"))
_BEGINS_A_QUERY = frozenset(("FROM", "SELECT", "TABLE", "VALUES", "WITH"))

# Names match first, as in polars: a quote inside a name opens no text. `odd` marks text that other SQL
# dialects read differently: comments, prefixed or dollar-quoted texts. Possessive, so always linear.
_TOKEN = re.compile(
    r"""(?P<blank>\s++)
    | (?P<odd> -- | /\* | [$\#\\] | \w++' | U&['"] )
    | (?P<text> '(?:[^']|'')*+' )
    | (?P<name> "(?:[^"]|"")*+" | `(?:[^`]|``)*+` )
    | (?P<open_quote> ['"`] )
    | (?P<number> [0-9]++ )
    | (?P<word> \w++ )
    | (?P<bracket> [()] )
    | (?P<operator> . )""",
    re.VERBOSE | re.DOTALL,
)


def parse_expression(pl: Any, text: object, what: str) -> "polars.Expr":
    """Return the polars expression for SQL text. Reads no data. what: its purpose, for messages.

    Raises: FieldNotFound unless the text is an expression of columns.
    """
    try:
        _check_text(text)
        _check_backslashes(pl, text)
    except FieldNotFound as refused:
        raise refused.with_message(
            f"{what} is refused: {refused}. An expression is made of columns, operators and functions of their values, "
            "such as \"width >= 256 AND licence = 'cc-by'\"",
            what=what,
        ) from None
    try:
        out: polars.Expr = pl.sql_expr(text)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError) as error:
        raise FieldNotFound(
            f"{what} is not an SQL expression: {error}; write e.g. \"width >= 256 AND licence = 'cc-by'\"",
            what=what,
            given=text,
            accepted="an SQL expression",
        ) from error
    if out.meta.has_multiple_outputs():  # polars takes "*" and "^p.*$" for patterns, even in double quotes
        raise FieldNotFound(
            f"{what} names a pattern of columns, which gives several values; name one column, without '*' and '^...$'",
            what=what,
            given=text,
            accepted="one column",
        )
    return out


def sql_tokens(text: str) -> list[tuple[str, str]]:
    """Return (kind, token) pairs of an SQL expression in upper case, without blanks; kinds are groups of `_TOKEN`."""
    # Keywords are compared in Unicode upper case, like polars, where two more letters become S and I.
    token_pairs = ((str(one.lastgroup), one[0]) for one in _TOKEN.finditer(text.upper()))
    return [one for one in token_pairs if one[0] != "blank"]


def sql_names(text: str) -> set[str]:
    """Return the words of an SQL expression that may name columns, in upper case: all but calls and keywords."""
    tokens = [*sql_tokens(text), ("", "")]
    names = set[str]()
    for (kind, token), (_, follower) in pairwise(tokens):
        if kind == "name":
            names.add(token[1:-1].replace(token[0] * 2, token[0]))
        elif kind == "word" and not (token in _CALLED or token in _VALUES or follower == "("):
            names.add(token)
    return names


def counts(kind: str, token: str) -> bool:
    """Return whether a token counts towards the cost: a word or operator."""
    return kind in ("word", "operator") and token != ","


def _check_text(text: object) -> None:
    """Raise FieldNotFound unless the text is free of queries, comments and unlisted functions, and of bounded cost."""
    if not isinstance(text, str):
        raise FieldNotFound(f"{text!r} is not text", given=text, accepted="text")
    before = ("", "")
    heads = [""]  # for each open bracket, the word before it
    n_words = 0
    tokens = sql_tokens(text)
    for kind, token in tokens:
        if kind == "odd":
            raise FieldNotFound(
                f"{token!r} outside of a text; write neither comments nor prefixes of texts",
                given=token,
                accepted="neither comments nor prefixes",
            )
        if kind == "open_quote":
            raise FieldNotFound(f"the quote {token} is never closed", given=token, accepted="a closing quote")
        if kind == "word":
            _check_word(token, before, heads[-1])
        if token == "(" and before[0] in ("word", "name") and before[1] not in _CALLED:
            called = f"{before[1].lower()}(...)"
            raise FieldNotFound(
                f"{called} is not a function that may be called",
                given=called,
                accepted="a function that may be called",
            )
        if token == "(":
            heads.append(before[1])
        elif token == ")" and len(heads) > 1:
            heads.pop()
        n_words += counts(kind, token)
        before = (kind, token)
    if n_words > MAX_EXPRESSION_WORDS:
        raise FieldNotFound(
            f"{n_words} words and operators, where at most {MAX_EXPRESSION_WORDS} are accepted; write column IN (...) "
            "for many",
            where="words and operators",
            given=n_words,
            accepted=MAX_EXPRESSION_WORDS,
        )
    check_cost(tokens)


def _check_backslashes(pl: Any, text: object) -> None:
    """Raise FieldNotFound if this polars may split the text differently, at a backslash before a quote."""
    if not (isinstance(text, str) and "\\'" in text):
        return
    try:
        pl.sql_expr("'\\'")
    except pl.exceptions.PolarsError:
        raise FieldNotFound(
            f"polars {pl.__version__} reads a backslash before a quote in its own way; write none",
            given="\\'",
            accepted="no backslash before a quote",
        ) from None


def _check_word(word: str, before: tuple[str, str], head: str) -> None:
    """Raise FieldNotFound for a word that begins a query. head: the word before the innermost open bracket."""
    begins_query = word == "SELECT" or (word in _BEGINS_A_QUERY and before[1] == "(")
    if word == "FROM" and not begins_query:
        begins_query = before[1] != "DISTINCT" and head not in _TAKES_FROM
    if begins_query:
        raise FieldNotFound(
            f"{word} begins a query; a column of that name stands in double quotes",
            given=word,
            accepted="a column in double quotes",
        )
