"""Where chat templates run: Jinja's sandbox, with a budget of work that every step pays from before it is done.

A template is a program in the model's own files. Between its lines a clock could stop it; within one, `'x' * 10**9` or
`7**12000000` can't be stopped. So what a step costs is known before it runs: each loop, call, operator, filter and
printed value pays for its characters and items, and a template whose budget is spent ends. This bounds memory as well,
since what is made is paid for, and it doesn't depend on how fast the machine is.

For that, all that a template can reach must have a known cost: what isn't named in the tables below isn't there. The
tables hold what templates use. Random and placeholder texts aren't in them, nor are `%` and `format` on texts.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import wraps
from itertools import chain
from typing import Any, NoReturn, cast

from jinja2 import Template, nodes, pass_context, pass_eval_context
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["BUDGET", "Refusal", "TemplateEnvironment", "TooMuchWork"]

BUDGET = 1 << 27
"""What a rendering may cost: a character that is made costs 1. A conversation of 100,000 characters costs one or two
million, by a template that looks at each message again and again."""

STEP = 64
"""What a loop's turn, a call, an operator or a filter costs besides what it makes."""

ITEM = 16
"""What an item of a list or an entry of a mapping costs, besides its own characters."""

READ = 16
"""Characters that are read for 1: compared, searched, or stripped."""

MOST_BITS = 4096
"""Of a whole number."""

MOST_DEPTH = 100
"""Of lists within lists. Python's own functions take nested values apart without a limit of their own."""

_OF_JINJA = ("_loop_vars", "_block_vars")
"""Arguments that Jinja adds to calls for its own use."""

_ESCAPED = 12
"""Characters of a text's one character where a list is printed or written as JSON, at most."""

_END = object()
_CONTAINERS: tuple[Any, ...] = (list, tuple, dict, range, type({}.keys()), type({}.values()), type({}.items()))

_TEXT_METHODS = frozenset(
    "capitalize casefold center count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric "
    "isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix replace rfind rindex rjust "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill".split()
)
_METHODS: dict[type, frozenset[str]] = {
    str: _TEXT_METHODS,
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"get", "items", "keys", "values"}),
    LoopContext: frozenset(
        "cycle depth depth0 first index index0 last length nextitem previtem revindex revindex0".split()
    ),
    Cycler: frozenset({"current", "next", "reset"}),
}
"""What attributes values have, besides mappings' entries and what a namespace holds."""

_PLAIN_TESTS = (
    "boolean callable defined divisibleby escaped even false filter float integer iterable mapping none number odd "
    "sameas sequence string test true undefined"
).split()
_COMPARING_TESTS = "!= < <= == > >= eq equalto ge greaterthan gt in le lessthan lower lt ne upper".split()


class TooMuchWork(Exception):
    """The budget is spent."""


class Refusal(Exception):
    """The template called raise_exception."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """One template's Jinja, as templates for transformers expect it. Not for several threads at a time."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], finalize=self.printed
        )
        self.left = 0
        self.concat = self._joined  # type: ignore[method-assign]
        self.filters = self._filters()
        tests: Mapping[str, Any] = TESTS
        self.tests = {name: tests[name] for name in _PLAIN_TESTS}
        self.tests |= {name: self._comparing(tests[name]) for name in _COMPARING_TESTS}
        self.globals = {
            "range": self.globals["range"],  # Jinja's own, which is bounded
            "namespace": _OpaqueNamespace,
            "dict": self._dict,
            "cycler": Cycler,
            "joiner": Joiner,
            "raise_exception": self._raise,
            "strftime_now": _strftime_now,
        }

    def start(self) -> None:
        """Gives a whole budget, for compiling or for rendering."""
        self.left = BUDGET

    def template(self, source: str) -> Template:
        """Compiles a template. Raises jinja2.TemplateSyntaxError for one that is broken."""
        self.start()
        tree = _Priced().visit(self.parse(source))
        return Template.from_code(self, self.compile(tree), self.make_globals(None))

    # Paying ---------------------------------------------------------------------------------------------------------

    def pay(self, cost: int) -> None:
        """Takes a cost from the budget. Raises TooMuchWork where it doesn't suffice."""
        self.left -= cost
        if self.left < 0:
            raise TooMuchWork

    def weight(self, value: object) -> int:
        """The characters and items of a value, counted as often as it holds them: what a function takes that goes all
        through it. Raises TooMuchWork where it is above the budget or too deep."""
        weight = 0
        open_ends: list[Iterator[Any]] = [iter((value,))]
        while open_ends:
            item: Any = next(open_ends[-1], _END)
            if item is _END:
                open_ends.pop()
            elif isinstance(item, str):
                weight += len(item)
            elif isinstance(item, _CONTAINERS):
                weight += ITEM * len(item)
                if len(open_ends) > MOST_DEPTH or weight > self.left:
                    raise TooMuchWork
                open_ends.append(chain.from_iterable(item.items()) if isinstance(item, dict) else iter(item))
        return weight

    def printed(self, value: Any) -> Any:
        """Pays for writing a value as text, and returns it."""
        if isinstance(value, str):
            self.pay(len(value))
        elif isinstance(value, _CONTAINERS):
            self.pay(_ESCAPED * self.weight(value))
        return value

    def made(self, value: Any) -> Any:
        """Pays for a value that was put together, and returns it. Since what is in it is paid for as often as it is in
        it, no value weighs more than the budget."""
        if isinstance(value, (str, *_CONTAINERS)):
            self.pay(self.weight(value))
        return value

    def taken(self, value: Any) -> Any:
        """Pays for a value that holds what one other holds, or less, and returns it."""
        if isinstance(value, str):
            self.pay(len(value))
        elif isinstance(value, _CONTAINERS):
            self.pay(ITEM * len(value))
        elif isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise TooMuchWork
        return value

    def read(self, value: Any) -> Any:
        """Pays for going through a value once, and returns it."""
        self.pay(self.weight(value) // READ)
        return value

    def counted(self, values: Any) -> Any:
        """Pays for a loop over values, and returns them."""
        if not hasattr(values, "__len__"):
            values = list(values)
        self.pay(STEP * len(values))
        return values

    # What Jinja asks for --------------------------------------------------------------------------------------------

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kind, names in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return isinstance(obj, Namespace) and not attr.startswith("_")

    def wrap_str_format(self, value: Any) -> None:
        """Jinja makes an exception for `format`: here it is an attribute like others, and none that is safe."""

    def getitem(self, obj: Any, argument: Any) -> Any:
        if not isinstance(argument, (str, int)):
            self.read(argument)
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.pay(STEP)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            if operator == "**" and isinstance(left, int) and left.bit_length() * right > MOST_BITS:
                raise TooMuchWork
        elif operator == "*":
            sequence, times = (right, left) if isinstance(left, int) else (left, right)
            self.pay(self.weight(sequence) * times if isinstance(times, int) and times > 0 else 0)
        elif operator == "+":
            self.pay(self.weight(left) + self.weight(right))
        elif not isinstance(left, Undefined) and not isinstance(right, Undefined):
            raise TypeError(f"{operator} is for numbers, not for {type(left).__name__} and {type(right).__name__}")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > MOST_BITS:
            raise TooMuchWork
        return result

    def call(self, context: Context, function: Any, /, *args: Any, **options: Any) -> Any:
        self.pay(STEP)
        owner = getattr(function, "__self__", None)
        if isinstance(owner, str):
            args = self._for_text_method(owner, function.__name__, args, options)
        elif isinstance(owner, (list, tuple, dict)):
            for value in (*args, *([owner] if function.__name__ in ("count", "index") else ())):
                self.read(value)
        elif isinstance(function, LoopContext):
            args = tuple(map(self.counted, args))
        else:
            for value in args:
                self.pay(ITEM * len(value) if isinstance(value, _CONTAINERS) else 0)
        result = super().call(context, function, *args, **options)
        return self.made(result) if isinstance(owner, str) else result

    def _for_text_method(
        self, text: str, name: str, args: Sequence[Any], options: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Pays for a method of a text besides what it makes, and returns its arguments."""
        values = (*args, *(value for name, value in options.items() if name not in _OF_JINJA))
        longest = max((self.weight(value) for value in values), default=0)
        self.pay(len(text) * max(1, longest) // READ)
        for width in values:
            self.pay(abs(width) if isinstance(width, int) else 0)
        if name == "join" and args:
            args = (list(args[0]), *args[1:])
            self._pay_join(text, args[0])
        elif name == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
            self.pay(text.count(args[0]) * len(args[1]))
        return tuple(args)

    def _pay_join(self, between: str, values: Sequence[Any]) -> None:
        self.pay(len(between) * len(values))
        for value in values:
            self.printed(value)

    def _joined(self, pieces: Iterable[str]) -> str:
        pieces = list(pieces)
        self.pay(sum(map(len, pieces)))
        return "".join(pieces)

    # Filters, tests, functions --------------------------------------------------------------------------------------

    def _filters(self) -> dict[str, Callable[..., Any]]:
        """The filters, each with what it pays before it runs. All pay for what they make."""

        def nothing(value: Any, *args: Any, **options: Any) -> None:
            pass

        def text(value: Any, *args: Any, **options: Any) -> None:
            self.printed(value)
            for other in (*args, *options.values()):  # what is stripped, how wide it is to be
                self.pay(abs(other) if isinstance(other, int) else self.weight(value) * self.weight(other) // READ)

        def escaped(value: Any) -> None:
            self.pay(_ESCAPED * self.weight(value))

        def each(value: Any, *args: Any, **options: Any) -> None:
            self.pay(STEP * len(value) if hasattr(value, "__len__") else 0)

        def ordered(value: Any, *args: Any, **options: Any) -> None:
            each(value)
            self.pay(2 * self.weight(value))

        def replaced(value: Any, old: Any, new: Any, count: Any = None) -> None:
            for part in (value, old, new):
                self.printed(part)
            self.pay(str(value).count(str(old)) * len(str(new)))

        def indented(value: str, width: Any = 4, first: bool = False, blank: bool = False) -> None:
            self.pay(ITEM * len(value))
            self.pay((len(value.splitlines()) + 1) * (len(width) if isinstance(width, str) else max(0, width)))

        @pass_eval_context
        def join(context: EvalContext, value: Any, d: str = "", attribute: Any = None) -> str:
            values, between = list(value), str(self.printed(d))
            self._pay_join(between, values)
            return str(FILTERS["join"](context, values, between, attribute))

        @pass_context
        def mapped(context: Context, values: Any, *args: Any, **options: Any) -> Iterator[Any]:
            each(values)
            return map(self.made, FILTERS["map"](context, values, *args, **options))

        priced: dict[Callable[..., None], Sequence[str]] = {
            nothing: ("abs", "count", "d", "default", "first", "last", "length"),
            text: "capitalize center float int lower safe string title trim upper".split(),
            escaped: ("e", "escape", "forceescape"),
            each: "items list reject rejectattr reverse select selectattr".split(),
            ordered: "dictsort max min sort unique".split(),
            replaced: ("replace",),
            indented: ("indent",),
        }
        filters = {name: self._paid(FILTERS[name], price) for price, names in priced.items() for name in names}
        filters |= {"join": self._paid(join, nothing), "tojson": self._paid(self._to_json, nothing)}
        filters |= {"map": self._paid(mapped, nothing)}
        payments = self.printed, self.made, self.taken, self.read, self.counted
        return filters | {_payment(pay): pay for pay in payments}

    def _paid(self, function: Callable[..., Any], price: Callable[..., None]) -> Callable[..., Any]:
        own = 1 if hasattr(function, "jinja_pass_arg") else 0  # arguments that Jinja puts before the template's

        @wraps(function)
        def run(*args: Any, **options: Any) -> Any:
            self.pay(STEP)
            price(*args[own:], **options)
            return self.taken(function(*args, **options))

        return run

    def _comparing(self, function: Callable[..., Any]) -> Callable[..., bool]:
        @wraps(function)
        def run(*args: Any) -> bool:
            self.pay(ITEM)
            for value in args:
                self.printed(value)
            return bool(function(*args))

        return run

    def _to_json(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: Any = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        """Unlike Jinja's own, without HTML escapes."""
        between = MOST_DEPTH * (indent if isinstance(indent, int) else len(indent or "")) + self.weight(separators)
        self.pay((ITEM + self.weight(value)) * (_ESCAPED + max(0, between)))
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def _dict(self, *args: Any, **options: Any) -> dict[Any, Any]:
        return self.made(dict(*map(self.read, args), **options))  # type: ignore[no-any-return]

    def _raise(self, message: object) -> NoReturn:
        raise Refusal(self.printed(message))


def _strftime_now(form: str) -> str:
    if len(form) > 100:
        raise TooMuchWork
    return datetime.now().strftime(form)


class _OpaqueNamespace(Namespace):
    """A namespace that isn't printed with what it holds: that may change, and hold itself."""

    __repr__ = object.__repr__


class _Generation(Extension):
    """{% generation %} marks the model's own words for training; here it only passes them on."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration says what it is)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _payment(pay: Callable[..., Any]) -> str:
    """The name of a filter that only pays, which is none that a template can write with a bar."""
    return f"pay: {pay.__name__}"


class _Priced(NodeTransformer):
    """Puts payments where Jinja has no hook: loops, comparisons, slices, `~`, and lists, mappings and tuples."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through(TemplateEnvironment.counted, cast(nodes.Expr, node.iter))
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        operands = [node.expr, *(operand.expr for operand in node.ops)]
        if sum(map(_is_constant, operands)) < len(operands) - 1 or any(op.op in ("in", "notin") for op in node.ops):
            node.expr = _reading(node.expr)
            for operand in node.ops:
                operand.expr = _reading(operand.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_through(TemplateEnvironment.printed, part) for part in node.nodes]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _through(TemplateEnvironment.taken, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return node if _is_constant(node) else _through(TemplateEnvironment.made, node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _through(TemplateEnvironment.made, node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if node.ctx != "load" or _is_constant(node) else _through(TemplateEnvironment.made, node)


def _through(pay: Callable[..., Any], node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, _payment(pay), [], [], None, None, lineno=node.lineno)


def _reading(node: nodes.Expr) -> nodes.Expr:
    return node if _is_constant(node) else _through(TemplateEnvironment.read, node)


def _is_constant(node: nodes.Expr) -> bool:
    """Whether it stands in the template, with all its items: its size is the template's."""
    if isinstance(node, (nodes.List, nodes.Tuple)):
        return all(map(_is_constant, node.items))
    return isinstance(node, nodes.Const)
