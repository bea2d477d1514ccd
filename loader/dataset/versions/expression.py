"""SQL expressions on the samples table, from text to polars.

Any author may have written an expression of a plan or view. While polars parses it, it runs queries inside and reads
the files and addresses that they name. So the text is checked first, and only calls of listed functions pass.
"""

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ...errors import FieldNotFound
from ...limits import MAX_EXPRESSION_WORDS
from .expression_cost import TooCostly, check_cost

if TYPE_CHECKING:
    import polars

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
"""Functions that polars 1.30 to 2.1 calls by name, with one value per row or group."""

_WORDS = """
all and any as between by case cast distinct div else escape extract filter from group ilike in is like not on or over
placing position regexp rlike safe_cast similar some substring then to trim try_cast when where xor
"""
"""Other words that a bracket may follow."""

_TYPES = """
binary char character datetime dec decimal double float int integer numeric real string text time timestamp varbinary
varchar varying
"""

_CALLED = frozenset((_FUNCTIONS + _WORDS + _TYPES).upper().split())
_VALUES = frozenset(("FALSE", "NULL", "TRUE"))
_TAKES_FROM = frozenset(("EXTRACT", "SUBSTR", "SUBSTRING", "TRIM"))
_BEGINS_A_QUERY = frozenset(("FROM", "SELECT", "TABLE", "VALUES", "WITH"))

# Names are read first, as polars does: a quote in them opens no text. `odd` marks text that another dialect of
# SQL reads differently: comments, texts with a prefix or between dollars. Possessive: linear, whatever the text.
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
    """Return the polars expression of SQL text. Reads nothing. what: its purpose, for messages.

    Raises: FieldNotFound unless it is an expression of columns.
    """
    if refused := _refused(text) or _otherwise_read(pl, text):
        raise FieldNotFound(
            f"{what} is refused: {refused}. An expression is made of columns, operators and functions of their values, "
            "such as \"width >= 256 AND licence = 'cc-by'\""
        )
    try:
        out: polars.Expr = pl.sql_expr(text)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError) as error:
        raise FieldNotFound(
            f"{what} is not an SQL expression: {error}; write e.g. \"width >= 256 AND licence = 'cc-by'\""
        ) from error
    return out


def tokens_of(text: str) -> list[tuple[str, str]]:
    """Return (kind, token) of an SQL expression, upper case, without blanks; kinds are `_TOKEN`'s groups."""
    # Keywords are compared as polars does, by Unicode's upper case: two more letters are an S and an I there.
    token_pairs = ((str(one.lastgroup), one[0]) for one in _TOKEN.finditer(text.upper()))
    return [one for one in token_pairs if one[0] != "blank"]


def names_in(text: str) -> set[str]:
    """Return the words of an SQL expression that may name columns, in upper case: all but calls and keywords."""
    tokens = [*tokens_of(text), ("", "")]
    names = set[str]()
    for (kind, token), (_, follower) in pairwise(tokens):
        if kind == "name":
            names.add(token[1:-1].replace(token[0] * 2, token[0]))
        elif kind == "word" and not (token in _CALLED or token in _VALUES or follower == "("):
            names.add(token)
    return names


def counts(kind: str, token: str) -> bool:
    """Return whether a token is a counted word or operator."""
    return kind in ("word", "operator") and token != ","


def _refused(text: object) -> str | None:
    """Return why polars must not see this text; None if it may."""
    if not isinstance(text, str):
        return f"{text!r} is no text"
    before, heads, n_words, tokens = ("", ""), [""], 0, tokens_of(text)
    for kind, token in tokens:
        if kind == "odd":
            return f"{token!r} outside of a text; write neither comments nor prefixes of texts"
        if kind == "open_quote":
            return f"the quote {token} is never closed"
        if kind == "word" and (why := _bad_word(token, before, heads[-1])):
            return why
        if token == "(" and before[0] in ("word", "name") and before[1] not in _CALLED:
            return f"{before[1].lower()}(...) is no function that may be called"
        if token == "(":
            heads.append(before[1])
        elif token == ")" and len(heads) > 1:
            heads.pop()
        n_words += counts(kind, token)
        before = (kind, token)
    if n_words > MAX_EXPRESSION_WORDS:
        return (
            f"{n_words} words and operators, where at most {MAX_EXPRESSION_WORDS} are accepted; write column IN (...) "
            "for many"
        )
    try:
        check_cost(tokens)
    except TooCostly as error:
        return str(error)
    return None


def _otherwise_read(pl: Any, text: object) -> str | None:
    """Return why this polars may split the text otherwise, as by a backslash before a quote."""
    if isinstance(text, str) and "\\'" in text:
        try:
            pl.sql_expr("'\\'")
        except pl.exceptions.PolarsError:
            return f"polars {pl.__version__} reads a backslash before a quote in its own way; write none"
    return None


def _bad_word(word: str, before: tuple[str, str], head: str) -> str | None:
    """Return why to refuse a word, or None. head: the word before the innermost open bracket."""
    asks = word == "SELECT" or (word in _BEGINS_A_QUERY and before[1] == "(")
    if word == "FROM" and not asks:
        asks = before[1] != "DISTINCT" and head not in _TAKES_FROM
    return f"{word} begins a query; a column of that name stands in double quotes" if asks else None
