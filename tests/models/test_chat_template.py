"""Chat templates: written as transformers writes them, and harmless whatever they try."""

from collections.abc import Sequence
from datetime import datetime

import pytest

from slipstream.errors import ModelError
from slipstream.messages import Message
from slipstream.models.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hello <b>"}, {"role": "assistant", "content": "Hi"}]


def render(source: str, messages: Sequence[Message] = MESSAGES, **variables: str | None) -> str:
    return ChatTemplate(source, variables).render(messages)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}[{{ m.role }}]{{ m['content'] }}{% endfor %}", "[user]Hello <b>[assistant]Hi"),
        ("{% for m in messages %}\n    {{ m.content }}\n{% endfor %}\nend", "    Hello <b>\n    Hi\nend"),
        (
            "{{ messages | tojson }}",
            '[{"role": "user", "content": "Hello <b>"}, {"role": "assistant", "content": "Hi"}]',
        ),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}-{{ messages[1].content }}", "Hello <b>-Hi"),
    ],
)
def test_renders_messages(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("  {% if add_generation_prompt %}\nyes\n  {% endif %}\n", "yes\n"),
        ("{% for n in range(9) %}{% if loop.index == 3 %}{% break %}{% endif %}{{ n }}{% endfor %}", "01"),
        ("{{ {'a': 'é'} | tojson(indent=2) }}", '{\n  "a": "é"\n}'),
        (
            "{{ bos_token }}|{{ eos_token is defined }}|{{ tools is none }}|{{ documents is none }}",
            "<s>|False|True|True",
        ),
        ("a{% generation %}b{% endgeneration %}c", "abc"),
        ("{% set ns = namespace(n=0) %}{% for m in range(2) %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
    ],
)
def test_renders_as_templates_expect(source: str, text: str) -> None:
    assert render(source, (), bos_token="<s>", eos_token=None) == text


def test_strftime_now() -> None:
    assert render("{{ strftime_now('%Y') }}", ()) == str(datetime.now().year)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('system role not supported') }}", "system role not supported"),
        ("{% for %}", "broken at line 1"),
        ("a\n{% unknown_tag %}", "broken at line 2"),
        ("{{ messages[0].content.__class__.__mro__ }}", "SecurityError"),
        ("{{ ().__class__.__base__.__subclasses__() }}", "SecurityError"),
        ("{{ messages.append({'role': 'x'}) }}", "SecurityError"),
        ("{{ messages.clear() }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__ }}", "SecurityError"),
        ("{{ messages | wordwrap(9) }}", "No filter named 'wordwrap'"),
        ("{{ '%d' % 3 }}", "% is for numbers"),
        ("{{ '{}'.format(3) }}", "SecurityError"),
        ("{{ lipsum() }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ missing.attribute }}", "UndefinedError"),
        ("{{ messages + 1 }}", "TypeError"),
        ("{% include '/etc/passwd' %}", "failed"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ raise_exception('two\nlines \x1b[2J') }}", "two lines [2J"),
    ],
)
def test_a_broken_or_hostile_template_is_one_line(source: str, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        render(source)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_messages_stay_as_they_were() -> None:
    before = [dict(message) for message in MESSAGES]
    render("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert before == MESSAGES
