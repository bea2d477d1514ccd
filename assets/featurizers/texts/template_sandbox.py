"""Run a chat template's code within bounds, in jinja2's sandbox.

jinja2's sandbox keeps a template from files and from Python, and bounds `range`. It does not bound nested loops,
recursion and texts that double. So each rendering has a budget of work: a pass of a loop and a call of a macro cost
`STEP`, a character that is copied or searched costs 1. Changes to the syntax tree charge it: loops and macros begin
with a call that pays, and `~` and comparisons pay for their operands. Rejected: a timeout, with which a slow machine
would reject chats that a fast one accepts.
"""

import json
import threading
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

GENERATION_START = "\ufdd0"
GENERATION_END = "\ufdd1"
MAX_WORK = 2**29
"""Work of one rendering: about a million passes of loops, or half a gigabyte of text."""
MAX_TEXT = 2**26
"""Longest text or list of one step."""
STEP = 512
"""Cost of a pass of a loop. About as long as the copying of so many characters takes."""
ITEM = 256
"""Cost of a value in a list or mapping that is written or compared."""
MAX_POWER = 64
"""Largest operand of `**`."""
MAX_INTEGER_BITS = 1024
"""Longest operand of arithmetic."""
MAX_INDENT = 64
"""Longest indent and separator of `tojson`."""
_GROWING_METHODS = frozenset(
    ("format", "format_map", "center", "ljust", "rjust", "zfill", "expandtabs", "translate", "encode")
)
"""Methods of texts by which a template of one line could fill the memory."""
_FILTERS_BY_LENGTH = (
    "abs",
    "capitalize",
    "count",
    "d",
    "default",
    "first",
    "float",
    "int",
    "items",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "reject",
    "rejectattr",
    "reverse",
    "safe",
    "select",
    "selectattr",
    "title",
    "trim",
    "upper",
)
_FILTERS_BY_SIZE = (
    "dictsort",
    "e",
    "escape",
    "groupby",
    "join",
    "max",
    "min",
    "sort",
    "string",
    "tojson",
    "unique",
)
"""Filters that may visit all that their value holds."""
_GLOBALS = ("range", "cycler", "joiner")
"""jinja2's globals that templates may call; `lipsum` makes text at random."""
_TESTS_THAT_SEARCH = ("in", "filter", "test")
"""Tests that would search without payment."""
_PASS = "a pass"
_SEARCH = "a search"
_CONCATENATION = "a concatenation"
"""Filters of the changed syntax tree. No template can name them: they hold a blank."""


class WorkExceeded(Exception):
    """The template does more work than a rendering may."""


class WorkBudget:
    """The work that is left to a rendering."""

    def __init__(self, most: int | None = None) -> None:
        """most: bound below MAX_WORK, or None."""
        self.limit = MAX_WORK
        if most is not None:
            self.limit = min(most, MAX_WORK)
        self.remaining = self.limit

    def spend(self, work: int) -> None:
        """Raise WorkExceeded if the rendering has less work to spend."""
        self.remaining -= work
        if self.remaining < 0 or work > MAX_TEXT:
            raise WorkExceeded("it loops, or makes text, beyond what a chat template needs")

    def spend_size(self, value: Any) -> None:
        """Spend on everything in a value. A list that holds itself twice, forty times over, ends at the budget."""
        pending = [value]
        while pending:
            part = pending.pop()
            if isinstance(part, str):
                self.spend(len(part))
                continue
            self.spend(ITEM)
            if isinstance(part, Mapping):
                pending.extend(part.keys())
                pending.extend(part.values())
            elif isinstance(part, list | tuple):
                pending.extend(part)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Environment of all chat templates: transformers' settings, filters that stay small, and a budget."""

    intercepted_binops = frozenset(("*", "**", "%", "+"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
            finalize=self.pay_for_text,
        )
        self._state = threading.local()
        by_length = {name: _paying(self._spend_length, self.filters[name]) for name in _FILTERS_BY_LENGTH}
        self.filters["tojson"] = _tojson
        by_size = {name: _paying(self._spend_size, self.filters[name]) for name in _FILTERS_BY_SIZE}
        # The others draw at random, or multiply text: a template that names one cannot be parsed.
        self.filters = {**by_length, **by_size, "replace": self._replace}
        self.filters[_PASS] = self._pay_for_pass
        self.filters[_SEARCH] = self._pay_for_search
        self.filters[_CONCATENATION] = self._concatenate
        for name in _TESTS_THAT_SEARCH:
            del self.tests[name]
        self.globals = {name: self.globals[name] for name in _GLOBALS}
        self.globals["dict"] = _new_dict  # the class itself has methods that make other objects
        self.globals["namespace"] = _PublicNamespace
        self.globals["raise_exception"] = _raise_exception
        # No clock: `strftime_now` would give other tokens on another day. Templates fall back to a fixed date.

    def start(self, budget: WorkBudget | None = None) -> WorkBudget:
        """Give this thread's next rendering a budget, by default a new one, and return it."""
        if budget is None:
            budget = WorkBudget()
        self._state.budget = budget
        return budget

    @property
    def _budget(self) -> WorkBudget:
        budget: WorkBudget | None = getattr(self._state, "budget", None)
        if budget is None:  # jinja2 computes constants when it compiles
            return self.start()
        return budget

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        return _paying_tree(tree)

    def pay_for_text(self, value: Any) -> Any:
        """Pay for a value that is written as text, and return it."""
        self._budget.spend_size(value)
        return value

    # jinja2 calls filters directly, and methods by its checks: these three stand in loops. With a context, it computes
    # none of them when it compiles.
    @jinja2.pass_context
    def _pay_for_pass(self, _: Context, n_characters: int) -> bool:
        """Pay for one pass of a loop or call of a macro, and for its constant text."""
        self._budget.spend(STEP + n_characters)
        return True

    @jinja2.pass_context
    def _pay_for_search(self, _: Context, value: Any) -> Any:
        """Pay for a value that is compared or searched, and return it."""
        if isinstance(value, str | Mapping):
            self._spend_length(value)
        else:
            self._budget.spend_size(value)
        return value

    @jinja2.pass_context
    def _concatenate(self, _: Context, *values: Any) -> str:
        """Return `values` as one text, as `~` does."""
        self._budget.spend_size(values)
        return "".join(map(str, values))

    def _spend_length(self, value: Any) -> None:
        if isinstance(value, str | list | tuple | Mapping | range):
            self._budget.spend(len(value))

    def _spend_size(self, value: Any) -> None:
        self._budget.spend_size(value)

    def _replace(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        """Pay for the filter `replace`, and apply it."""
        text = str(value)
        if count is None:
            count = -1  # all
        return self._replace_text(text, str(old), str(new), count)

    def _replace_text(self, text: str, old: str, new: str, /, count: int = -1) -> str:
        """Pay for `str.replace`, and apply it. count: most replacements; below 0 for all."""
        # Since Python 3.13 `str.replace` also takes `count` by name: a template has equal results on all versions.
        n_replaced = text.count(old)
        if count >= 0:
            n_replaced = min(n_replaced, count)
        self._budget.spend(len(text) + n_replaced * len(new))
        return text.replace(old, new, count)

    def _join(self, separator: str, texts: Any) -> str:
        """Pay for `str.join`, and apply it."""
        pieces = list(texts)
        self._budget.spend(len(separator) * len(pieces))
        self._budget.spend_size(pieces)
        return separator.join(pieces)

    def call(self, context: Any, function: Any, /, *arguments: Any, **named: Any) -> Any:
        owner = getattr(function, "__self__", None)
        name = getattr(function, "__name__", "")
        if isinstance(owner, str):
            if name == "replace":
                return self._replace_text(owner, *arguments, **named)
            if name == "join":
                return self._join(owner, *arguments)
            self._budget.spend(len(owner))  # other methods visit the text once
        return super().call(context, function, *arguments, **named)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, slice):
            self._spend_length(obj)
        return super().getitem(obj, argument)

    def call_binop(
        self,
        context: Any,
        operator: str,
        first: Any,
        second: Any,
    ) -> Any:
        operands = (first, second)
        has_sequence = any(isinstance(operand, str | list | tuple) for operand in operands)
        if operator == "%" and isinstance(first, str):
            raise SecurityError("texts are not formatted by % here; use ~")
        if operator == "**" and any(_exceeds(operand, MAX_POWER) for operand in operands):
            raise SecurityError(f"a power above {MAX_POWER}")
        if operator == "*" and has_sequence:
            self._spend_product(first, second)
        elif operator == "+" and has_sequence:
            for operand in operands:
                self._spend_length(operand)
        elif any(_exceeds(operand, 2**MAX_INTEGER_BITS) for operand in operands):
            raise SecurityError(f"a number of more than {MAX_INTEGER_BITS} bits")
        return super().call_binop(context, operator, first, second)

    def _spend_product(self, first: Any, second: Any) -> None:
        """Pay for a text or list times a number, by the length of the result."""
        n_values = 1
        for operand in (first, second):
            if isinstance(operand, int):
                n_values *= max(operand, 0)  # a negative number gives an empty one
            elif isinstance(operand, str | list | tuple):
                n_values *= len(operand)
        self._budget.spend(n_values)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        # `int.to_bytes` fills memory; no template needs a method of a number.
        is_number = isinstance(obj, int | float | bytes)
        is_growing = isinstance(obj, str) and attr in _GROWING_METHODS
        return not is_number and not is_growing and super().is_safe_attribute(obj, attr, value)


class _PublicNamespace(Namespace):
    """jinja2's namespace without names such as `__html__`, which Python calls by itself."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        attributes = dict(*arguments, **named)
        for name in attributes:
            _check_public(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace with the name {name!r:.80}; names begin with a letter here")


def _new_dict(*arguments: Any, **named: Any) -> dict[Any, Any]:
    return dict(*arguments, **named)


def _exceeds(value: Any, bound: int) -> bool:
    return isinstance(value, int) and abs(value) > bound


def _paying(pay: Callable[[Any], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that pays for its value first."""
    # jinja2 marks functions to which it passes its context or environment, which then precede the value.
    value_position = int(hasattr(function, "jinja_pass_arg"))

    @wraps(function)  # copies the mark, too
    def pay_call(*arguments: Any, **named: Any) -> Any:
        pay(arguments[value_position])
        return function(*arguments, **named)

    return pay_call


class _Generation(Extension):
    """Put a noncharacter at either end of what `{% generation %}` marks."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        start = nodes.Output([nodes.TemplateData(GENERATION_START)], lineno=line)
        end = nodes.Output([nodes.TemplateData(GENERATION_END)], lineno=line)
        return [start, *body, end]


class _Paying(NodeTransformer):
    """Insert the calls that pay."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        payment = _payment(node)
        node.body.insert(0, nodes.ExprStmt(payment))
        if node.test is not None:  # passes that it skips are passes
            node.test = nodes.And(payment, node.test)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_payment(node)))
        return node

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_payment(node)))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filter_node(_CONCATENATION, node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        # The right value bounds the work: a search visits it, and a comparison ends with the shorter value.
        values = [node.expr, *(operand.expr for operand in node.ops)]
        has_constant = any(isinstance(value, nodes.Const) for value in values)
        for operand in node.ops:
            is_search = operand.op in ("in", "notin")
            # A comparison with a constant of the template ends at its length.
            if is_search or not has_constant:
                operand.expr = _filter_node(_SEARCH, [operand.expr])
        return node


def _payment(node: nodes.Node) -> nodes.Filter:
    """Return a call that pays for a pass of a loop or a call of a macro. node: the loop or macro."""
    n_characters = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
    return _filter_node(_PASS, [nodes.Const(n_characters)])


def _filter_node(name: str, values: list[nodes.Expr]) -> nodes.Filter:
    """Return a call of a filter: the first value is filtered, the others are its arguments."""
    first, *others = values
    return nodes.Filter(first, name, others, [], None, None)


def _paying_tree(tree: nodes.Template) -> nodes.Template:
    changed: nodes.Template = _Paying().visit(tree)
    return changed


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as the filter of transformers does; jinja2's own escapes it for HTML."""
    if indent is not None and not 0 <= indent <= MAX_INDENT:
        raise SecurityError(f"indent={indent!r:.80}; accepted: 0 to {MAX_INDENT}")
    if separators is not None and max(map(len, separators)) > MAX_INDENT:
        raise SecurityError(f"separators of more than {MAX_INDENT} characters")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))
