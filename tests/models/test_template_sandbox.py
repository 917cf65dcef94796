"""Whatever a template does in one step or in many, its work and its memory are bounded."""

import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup

from slipstream.checks import shown
from slipstream.errors import ModelError
from slipstream.messages import Message
from slipstream.models import template_sandbox
from slipstream.models.chat_template import ChatTemplate
from slipstream.models.template_sandbox import _COMPARING_TESTS, _PLAIN_TESTS, _TEXT_METHODS, TemplateEnvironment

TEXT = "Grüße, <b>\n" * 500
LONG: list[Message] = [{"role": "user", "content": TEXT}]
BUDGET = 1 << 18
MOST_BYTES = 8 << 20
"""What rendering with this budget may take: four bytes a character, some for objects, and what a step makes of it."""
SECONDS = 60
"""After which a step counts as unbounded. Those that were took a minute and more, or all of the memory."""


@pytest.fixture(autouse=True, scope="module")
def small_budget() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template_sandbox, "BUDGET", BUDGET)
        yield


def bounded(*calls: tuple[str, Callable[[], object]]) -> list[object]:
    """What named calls give or raise. Fails where one takes too much memory, or doesn't end."""
    outcomes: list[object] = []
    large: list[str] = []

    def run() -> None:
        for name, call in calls:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                outcomes.append(call())
            except Exception as error:
                outcomes.append(error)
            peak = tracemalloc.get_traced_memory()[1] - before
            if peak > MOST_BYTES:
                large.append(f"{name[:300]} takes {peak >> 20} MiB")

    tracemalloc.start()
    try:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(SECONDS)
        assert not thread.is_alive(), f"{calls[len(outcomes)][0][:300]} doesn't end"
    finally:
        tracemalloc.stop()
    assert not large
    return outcomes


def written(source: str, messages: list[Message] = LONG) -> str:
    """What a template writes, held to the bounds. Raises what it raises."""
    (outcome,) = bounded((source, lambda: ChatTemplate(source, {})._render([dict(message) for message in messages])))
    if isinstance(outcome, Exception):
        raise outcome
    return str(outcome)


DOUBLING = "{%% set ns = namespace(x=%s) %%}{%% for i in range(60) %%}{%% set ns.x = %s %%}{%% endfor %%}%s"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 1500000000 }}",
        "{{ 1500000000 * 'x' }}",
        "{{ [0] * 1000000000 }}",
        "{{ [[0] * 100] * 100000000 }}",
        "{{ 7 ** 12000000 % 10 }}",
        "{{ 7 ** 4000 ** 2 }}",
        "{{ (2 ** 4000) * (2 ** 4000) * (2 ** 4000) }}",
        "{{ 'f' * 100000 | int(base=16) }}{{ ('f' * 100000) | int(base=16) }}",
        "{{ 'x'.ljust(10 ** 9) }}",
        "{{ 'x'.center(10 ** 9) }}",
        "{{ 'x'.rjust(10 ** 9) }}",
        "{{ 'x'.zfill(10 ** 9) }}",
        "{{ 'x' | center(10 ** 9) }}",
        "{{ 'a\nb' | indent(10 ** 9) }}",
        "{{ messages[0].content | indent(10 ** 5) }}",
        "{{ messages[0].content.replace('', messages[0].content) }}",
        "{{ messages[0].content | replace('r', messages[0].content) }}",
        "{{ messages[0].content.join(range(100000) | map('string')) }}",
        "{{ range(100000) | join(messages[0].content) }}",
        "{{ messages | tojson(indent=10 ** 9) }}",
        "{{ range(99999) | list | tojson(separators=['x' * 99999, '']) }}",
        "{{ ('b' * 200000 + 'a' * 200000).strip('c' * 100000 + 'b') }}",
        "{{ ('a' * 400000).rfind('b' + 'a' * 200000) }}",
        "{{ range(10 ** 9) | list }}",
        "{{ dict(a=[0] * 1000000) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ messages[0].content }}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
        "{% for a in range(99999) %}{% set x = messages[0].content[1:] %}{% endfor %}",
        "{% for a in range(99999) %}{% set x = 'q' in messages[0].content %}{% endfor %}",
        "{% for a in range(9999) %}{% set x = messages == messages + [a] %}{% endfor %}",
        "{% for a in range(9999) %}{% set x = {}[(messages[0].content,) * 9999] %}{% endfor %}",
        "{% set x %}{% for a in range(99999) %}" + "constant" * 99 + "{% endfor %}{% endset %}",
        "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for a in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
        "{% for a in [1] recursive %}{{ a }}{% if loop.depth < 90 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}",
        DOUBLING % ("'x'", "ns.x ~ ns.x", ""),
        DOUBLING % ("'x'", "ns.x + ns.x", ""),
        DOUBLING % ("[1]", "ns.x + ns.x", ""),
        DOUBLING % ("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
        DOUBLING % ("[1]", "(ns.x, ns.x)", "{{ {}[ns.x] }}"),
        DOUBLING % ("[1]", "{'a': ns.x, 'b': ns.x}", "{{ ns.x | tojson }}"),
        DOUBLING % ("[1]", "dict(a=ns.x, b=ns.x)", "{{ ns.x == ns.x }}"),
        DOUBLING % ("[1]", "range(1, 3) | map('replace', '1', ns.x | string) | list", "{{ ns.x }}"),
        DOUBLING % ("[1]", "[none, undefined] | map('default', ns.x, true) | list", "{{ ns.x }}"),
        DOUBLING % ("1", "ns.x + ns.x * ns.x + 1", "{{ ns.x }}"),
        DOUBLING % ("'<'", "(ns.x ~ ns.x) | forceescape", "{{ ns.x }}"),
        DOUBLING % ("'ß'", "(ns.x ~ ns.x) | upper", "{{ ns.x }}"),
        "{% set ns = namespace(x=()) %}{% for i in range(99999) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {}[ns.x] }}",
    ],
)
def test_too_much_is_ended(source: str) -> None:
    with pytest.raises(ModelError, match=r"far more work|RecursionError|OverflowError"):
        written(source)


def test_namespaces_that_hold_themselves() -> None:
    source = "{% set a = namespace() %}{% set b = namespace(a=a, c=a) %}{% set a.b = b %}{% set a.c = [b, b] %}"
    assert "Namespace" in written(source + "{{ a }}")
    assert "Namespace" in written(source + "{{ a.c }}")


def _same(*values: object) -> list[Callable[[], object]]:
    return [lambda value=value: value for value in values]  # type: ignore[misc]


VALUES: list[Callable[[], object]] = [
    *_same(None, 0, -1, 7, 10**9, 2**4000, 1e308, "", "x", TEXT, "a" * 30_000, Markup("<b>" * 999)),
    *_same([], [1] * 3000, [[[]]], ["b", "a", 3], {}, {"a": {"b": 1}}, (1, 2), LONG, range(9_999)),
    *(lambda: {"a": 1}.items(), lambda: iter(["a", TEXT] * 99)),
]
ARGUMENTS = (10**9, -1, "a", TEXT, [1] * 3000, "upper")
FILTERS = sorted(name for name in TemplateEnvironment().filters if " " not in name)


def render_all(source: str, arguments: Iterable[tuple[object, ...]] = ((),)) -> None:
    """Renders a template of a, and b and c, for all values of a."""
    environment = TemplateEnvironment()
    template = environment.template(source)

    def render(value: Callable[[], object], given: Sequence[object]) -> str:
        environment.start()
        return template.render(a=value(), **dict(zip("bc", given, strict=False)))

    bounded(
        *(
            (
                f"{source} with {shown(value())} and {shown(given)}",
                lambda value=value, given=given: render(value, given),
            )
            for value in VALUES
            for given in arguments
        )
    )


@pytest.mark.parametrize("name", FILTERS)
def test_every_filter(name: str) -> None:
    render_all(f"{{{{ a | {name} }}}}{{{{ a | {name} | list }}}}")
    render_all(f"{{{{ a | {name}(b) }}}}", [(b,) for b in ARGUMENTS])
    render_all(f"{{{{ a | {name}(b, c) }}}}", product(ARGUMENTS, ARGUMENTS))


@pytest.mark.parametrize("name", [*sorted(_TEXT_METHODS), "get", "items", "index"])
def test_every_method(name: str) -> None:
    render_all(f"{{{{ a.{name}() }}}}")
    render_all(f"{{{{ a.{name}(b) }}}}", [(b,) for b in ARGUMENTS])
    render_all(f"{{{{ a.{name}(b, c) }}}}", product(ARGUMENTS[:4], ARGUMENTS[:4]))


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and"])
def test_every_operator(operator: str) -> None:
    render_all(f"{{{{ a {operator} b }}}}{{{{ b {operator} a }}}}", [(value(),) for value in VALUES])


@pytest.mark.parametrize("name", [*_PLAIN_TESTS, *(name for name in _COMPARING_TESTS if name.isidentifier())])
def test_every_test(name: str) -> None:
    render_all(f"{{{{ a is {name} }}}}")
    render_all(f"{{{{ a is {name}(b) }}}}", [(b,) for b in ARGUMENTS])


BEGINNINGS = (
    "none undefined 0 7 1000000000 (2**4000) 'x' '<&\u0000' ('a'*30000) [] [1] ([1]*3000) {'a':1} (1,2) messages "
    "messages[0].content range(99999) dict(a=1).items() namespace(a=1) (range(9)|map('string'))"
).split(" ")
atoms = st.sampled_from([*BEGINNINGS, *["ns.x"] * 9])
names = st.sampled_from(FILTERS)
methods = st.sampled_from([*sorted(_TEXT_METHODS), "items", "get", "keys", "values", "index", "append"])


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    one, two, three = inner, inner, inner
    operators = st.sampled_from(["+", "*", "**", "-", "//", "%", "~", "==", "<", "in", "or"])
    return st.one_of(
        st.builds("({} {} {})".format, one, operators, two),
        st.builds("({} | {})".format, one, names),
        st.builds("({} | {}({}))".format, one, names, two),
        st.builds("({} | {}({}, {}))".format, one, names, two, three),
        st.builds("({} | map('{}', {}) | list)".format, one, names, two),
        st.builds("{}.{}({})".format, one, methods, two),
        st.builds("{}.{}({}, {})".format, one, methods, two, three),
        st.builds("[{}, {}]".format, one, two),
        st.builds("({}, {})".format, one, two),
        st.builds("{{'a': {}, 'b': {}}}".format, one, two),
        st.builds("{}[{}:]".format, one, two),
        st.builds("{}[{}]".format, one, two),
        st.builds("({} if {} else {})".format, one, two, three),
    )


@settings(max_examples=100, deadline=None)
@given(begin=st.sampled_from(BEGINNINGS), step=st.recursive(atoms, larger, max_leaves=6), end=names)
def test_any_expression_again_and_again(begin: str, step: str, end: str) -> None:
    with suppress(ModelError):
        written(DOUBLING % (begin, step, "{{ ns.x }}{{ ns.x | " + end + " }}"))


def test_a_long_conversation_needs_little() -> None:
    """A thousand turns of a thousand characters, by a template that looks at each of them in many ways."""
    spent = []
    whole = 1 << 27
    messages: list[Message] = [
        {"role": ("user", "assistant")[turn % 2], "content": f"{turn} <think>hm</think> " + "word " * 200}
        for turn in range(1000)
    ]
    source = (
        "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' and m.content is string "
        "and not (m.content.startswith('<tool>') and m.content.endswith('</tool>')) %}{% set ns.last = loop.index0 %}"
        "{% endif %}{% endfor %}{% for m in messages %}{% set content = m.content | trim %}"
        "{% if '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
        "{{ '<|' + m.role + '|>' + content.replace('<|', '< |') ~ '<|end|>' }}{% if loop.index0 == messages|length - 1 "
        "or messages[loop.index0 + 1:] | selectattr('role', 'equalto', 'system') | list | length %}.{% endif %}"
        "{% endfor %}"
    )
    environment = TemplateEnvironment()
    template = environment.template(source)
    for turns in (100, 1000):
        environment.left = whole
        assert template.render(messages=messages[:turns]).count("word") == 200 * turns
        spent.append(whole - environment.left)
    assert spent[0] < whole / 50
    assert spent[1] < whole / 2  # half a million pairs of turns among it


def test_several_threads_render_with_budgets_of_their_own() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    texts = [str(number) * 20_000 for number in range(9)]
    with ThreadPoolExecutor(4) as threads:
        made = threads.map(lambda text: template.render([{"role": "user", "content": text}]), texts * 20)
        assert list(made) == texts * 20
