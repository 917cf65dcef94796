"""Chat messages: what they say reaches the prompt, or is refused by name."""

import json
import math
from collections import UserDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from slipstream import Engine, ModelError, OptionError, SamplingParams
from slipstream.messages import ROLES, checked_messages
from slipstream.models.chat_template import ChatTemplate
from slipstream.tools.prompt_files import SourcedPrompt
from slipstream.tools.suites import prompt_ids

USER = {"role": "user", "content": "What is the time?"}
CALL = {"id": "call00001", "type": "function", "function": {"name": "clock", "arguments": {"zone": "UTC"}}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "noon", "tool_call_id": "call00001", "name": "clock"}


# What is taken -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "taken"),
    [
        (USER, USER),
        ({**USER, "name": None, "tool_calls": None, "annotations": []}, USER),
        ({**USER, "name": "Ada"}, {**USER, "name": "Ada"}),
        (UserDict(USER), USER),
        ({**USER, "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": " the time?"}]}, USER),
        ({**USER, "content": ({"type": "text", "text": ""},)}, {**USER, "content": ""}),
        ({"role": "assistant", "content": ""}, {"role": "assistant", "content": ""}),
        ({"role": "assistant", "content": "a", "tool_calls": []}, {"role": "assistant", "content": "a"}),
        (CALLS, {**CALLS, "content": ""}),
        ({"role": "assistant", "tool_calls": [CALL]}, {**CALLS, "content": ""}),
        ({**CALLS, "content": "Wait."}, {**CALLS, "content": "Wait."}),
        (RESULT, RESULT),
    ],
)
def test_taken(message: dict[str, Any], taken: dict[str, Any]) -> None:
    assert checked_messages([message]) == [taken]
    assert checked_messages(checked_messages([message])) == [taken]


def test_arguments_may_be_json_text() -> None:
    """As OpenAI's wire has them; templates get a mapping."""
    call = {"function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    assert checked_messages([{"role": "assistant", "tool_calls": [call]}]) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "clock", "arguments": {"zone": "UTC"}}}],
        }
    ]


# What is refused -----------------------------------------------------------------------------------------------------


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def calling(**changes: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{**CALL, **changes}]}


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (user(None), "messages[1].content is missing"),
        ({"role": "user"}, "messages[1].content is missing"),
        ({"role": "assistant", "content": None}, "messages[1].content is missing"),
        (user(3), "messages[1].content is 3: give a text, or a list of text parts"),
        (user([]), "messages[1].content is []"),
        (user(["a"]), "messages[1].content[0] is 'a'"),
        (
            user([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]),
            "content[1] is of type",
        ),
        (user([{"type": "input_audio"}]), "'input_audio': only parts of type text can be read"),
        (user([{"text": "a"}]), "content[0] is of type missing"),
        (user([{"type": "text"}]), "content[0].text is missing"),
        (
            user([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]),
            "content[0] has 'cache_control'",
        ),
        (user(b"a"), "messages[1].content is b'a'"),
        ({"content": "a"}, "messages[1].role is missing: use one of system, developer, user, assistant, tool"),
        ({"role": "function", "content": "a"}, "messages[1].role is 'function'"),
        ({"role": ["user"], "content": "a"}, "messages[1].role is ['user']"),
        (user("a", weight=1), "messages[1] has 'weight', and a message of role user has only role, content, name"),
        (user("a", tool_calls=[CALL]), "messages[1] has 'tool_calls'"),
        (user("a", name=3), "messages[1].name is 3"),
        (user("a", name=""), "messages[1].name is ''"),
        ({"role": "assistant", "content": "a", "tool_call_id": "x"}, "messages[1] has 'tool_call_id'"),
        ({"role": "tool", "content": "a", "tool_call_id": 5}, "messages[1].tool_call_id is 5"),
        ({"role": "assistant", "tool_calls": "clock"}, "messages[1].tool_calls is 'clock'"),
        ({"role": "assistant", "tool_calls": ["clock"]}, "messages[1].tool_calls[0] is 'clock'"),
        (calling(type="custom"), "tool_calls[0].type is 'custom': only functions can be called"),
        (calling(index=0), "tool_calls[0] has 'index'"),
        (calling(id=7), "tool_calls[0].id is 7"),
        (calling(function=None), "tool_calls[0].function is missing"),
        (calling(function={"arguments": {}}), "function.name is missing"),
        (calling(function={"name": "f"}), "function.arguments is missing: give a JSON object, or its text"),
        (calling(function={"name": "f", "arguments": "{"}), "function.arguments is '{'"),
        (calling(function={"name": "f", "arguments": "[1]"}), "function.arguments is '[1]'"),
        (calling(function={"name": "f", "arguments": {"a": math.nan}}), "function.arguments is {'a': nan}"),
        (calling(function={"name": "f", "arguments": {}, "strict": True}), "function has 'strict'"),
        ("hello", "not a mixture"),
    ],
)
def test_refused_by_name(engine: Engine, message: Any, says: str) -> None:
    with pytest.raises(OptionError) as caught:
        engine.generate([USER, message], SamplingParams(max_tokens=1))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("messages", [[], (), None, "hi", b"hi", {"role": "user", "content": "a"}, 3])
def test_no_messages(messages: object) -> None:
    with pytest.raises(OptionError, match=r"messages is .*: write \["):
        checked_messages(messages)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ENTRY = st.sampled_from(
    ["role", "content", "name", "tool_calls", "tool_call_id", "type", "text", "function", "arguments"]
)
NEARLY = st.recursive(
    JSON | st.sampled_from([*ROLES, "text", "function"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ENTRY, inner, max_size=5),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(ENTRY, NEARLY, max_size=5), max_size=3))
def test_any_messages_are_taken_whole_or_refused(messages: Any) -> None:
    with suppress(OptionError):
        checked = checked_messages(messages)
        assert len(checked) == len(messages)
        for message in checked:
            assert message["role"] in ROLES
            assert isinstance(message["content"], str)
            json.dumps(message, allow_nan=False)


# What a template leaves out ------------------------------------------------------------------------------------------

LOOP = "{%% for m in messages %%}%s{%% endfor %%}{%% if add_generation_prompt %%}>{%% endif %%}"
SAYS_ALL = LOOP % "[{{ m.role }}:{{ m.content }}]"
NO_TOOLS = LOOP % "{% if m.role in ['system', 'user', 'assistant'] %}[{{ m.role }}:{{ m.content }}]{% endif %}"
NO_SYSTEM = LOOP % "{% if m.role != 'system' %}[{{ m.content }}]{% endif %}"
MOVES_SYSTEM = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content.strip() %}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}["
    "{% if loop.last and system is defined %}{{ system | tojson }} {% endif %}"
    "{{ m.content | trim }}]{% endfor %}"
)
DROPS_THOUGHTS = LOOP % (
    "[{% if m.role == 'assistant' and '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}]"
)
CALLS_TOOLS = LOOP % (
    "[{{ m.role }}:{{ m.content }}{% for call in m.tool_calls %}<call>{{ call.function | tojson }}</call>{% endfor %}]"
)
CALL_OR_CONTENT = (
    LOOP % "{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% else %}{{ m.content }}{% endif %}"
)
NAMES = LOOP % "[{{ m.name or m.role }}:{{ m.content }}]"
SYSTEM = {"role": "system", "content": " Be brief. "}


def render(source: str, *messages: dict[str, Any]) -> str:
    return ChatTemplate(source, {}).render(checked_messages(messages))


@pytest.mark.parametrize(
    ("source", "messages", "text"),
    [
        (SAYS_ALL, (SYSTEM, USER), "[system: Be brief. ][user:What is the time?]>"),
        (SAYS_ALL, (USER, RESULT), "[user:What is the time?][tool:noon]>"),
        (MOVES_SYSTEM, (SYSTEM, USER), '["Be brief." What is the time?]'),
        (DROPS_THOUGHTS, (USER, {"role": "assistant", "content": "hm</think>noon"}, USER), None),
        (
            CALLS_TOOLS,
            (USER, CALLS, RESULT),
            "[user:What is the time?]"
            '[assistant:<call>{"name": "clock", "arguments": {"zone": "UTC"}}</call>][tool:noon]>',
        ),
        (NAMES, ({**USER, "name": "Ada"},), "[Ada:What is the time?]>"),
        (SAYS_ALL, ({"role": "assistant", "content": ""},), "[assistant:]>"),
    ],
)
def test_what_is_shown_is_rendered(source: str, messages: tuple[dict[str, Any], ...], text: str | None) -> None:
    assert render(source, *messages) == (text or "[What is the time?][noon][What is the time?]>")


@pytest.mark.parametrize(
    ("source", "messages", "names"),
    [
        (NO_TOOLS, (USER, RESULT), "messages[1].content (role tool)"),
        (NO_TOOLS, (USER, CALLS, RESULT), "messages[1].tool_calls[0], messages[2].content (role tool)"),
        (NO_TOOLS, ({**SYSTEM, "role": "developer"}, USER), "messages[0].content (role developer)"),
        (NO_SYSTEM, (SYSTEM, USER), "messages[0].content (role system)"),
        (NO_SYSTEM, ({"role": "system", "content": "W"}, USER), "messages[0].content (role system)"),  # a W is written
        (MOVES_SYSTEM.replace("tojson", "length"), (SYSTEM, USER), "messages[0].content (role system)"),
        (SAYS_ALL, (USER, CALLS), "messages[1].tool_calls[0]"),
        (SAYS_ALL, ({**USER, "name": "Ada"},), "messages[0].name"),
        (CALL_OR_CONTENT, (USER, {**CALLS, "content": "Wait."}), "messages[1].content (role assistant)"),
        (CALL_OR_CONTENT, (USER, {**CALLS, "tool_calls": [CALL, CALL]}), "messages[1].tool_calls[1]"),
        (CALLS_TOOLS.replace("function", "function.name"), (USER, CALLS), "messages[1].tool_calls[0]"),
        ("always the same", (USER,), "messages[0].content (role user)"),
    ],
)
def test_what_would_vanish_is_refused(source: str, messages: tuple[dict[str, Any], ...], names: str) -> None:
    with pytest.raises(ModelError) as caught:
        render(source, *messages)
    assert f"has no place for {names}: leave it out" in str(caught.value)


def test_a_template_that_reads_content_s_own_form_is_believed() -> None:
    """Marks have no comma, so this template refuses them: what it leaves out can't be told."""
    source = LOOP % "{% if ',' not in m.content %}{{ raise_exception('a comma!') }}{% endif %}[{{ m.content }}]"
    assert render(source, {"role": "user", "content": "a,b"}) == "[a,b]>"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.load(tiny.make(tmp_path_factory.mktemp("messages") / "model"), drafter="null")


def test_in_an_engine(engine: Engine) -> None:
    params = SamplingParams(max_tokens=0, echo=True)
    text = engine.generate([USER, {"role": "assistant", "content": [{"type": "text", "text": "noon"}]}], params).text
    assert text == "user\nWhat is the time?\nassistant\nnoon\nassistant\n"
    with pytest.raises(ModelError, match=r"no place for messages\[1\].tool_calls\[0\]"):
        engine.generate([USER, CALLS], params)
    with pytest.raises(ModelError, match=r"odd.jsonl, line 4: the model's chat template has no place"):
        prompt_ids(engine, [SourcedPrompt([USER, CALLS], "odd.jsonl, line 4")])


def test_the_default_model_shows_every_role(smollm2_path: Path, smollm2: Engine) -> None:
    messages = [{"role": role, "content": f"I am {role}."} for role in ROLES]
    text = smollm2.generate(messages, SamplingParams(max_tokens=0, echo=True)).text
    assert all(message["content"] in text for message in messages)
