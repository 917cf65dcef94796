"""Chat messages: what one may hold, and the one form in which templates get them.

Whatever a message says reaches the model or is refused. So an entry that isn't known here is an error, and `marked`
makes messages by which a template is asked what it leaves out.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.checks import shown
from slipstream.errors import OptionError

__all__ = ["ROLES", "Message", "checked_messages", "marked"]

ROLES = ("system", "developer", "user", "assistant", "tool")

Message = Mapping[str, Any]
"""One turn of a chat.

role          one of ROLES
content       a text, or a list of parts {"type": "text", "text": "…"}, which are joined; None is for an assistant's
              message that only calls tools
name          of who speaks, or of the tool; optional
tool_calls    an assistant's: [{"id": "…", "type": "function", "function": {"name": "…", "arguments": {…}}}]; id and
              type are optional, arguments may be JSON text
tool_call_id  a tool's: the call that it answers; optional

An entry that is None or an empty list counts as left out.
"""

_ENTRIES = {
    "assistant": ("role", "content", "name", "tool_calls"),
    "tool": ("role", "content", "name", "tool_call_id"),
}
_CALL_ENTRIES = ("id", "type", "function")
_FUNCTION_ENTRIES = ("name", "arguments")


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """The messages as templates get them: role and content are texts, a call's arguments a mapping, and what counts as
    left out isn't there. Raises OptionError that names the message and the entry."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not len(messages):
        raise OptionError(f'messages is {shown(messages)}: write [{{"role": "user", "content": "…"}}]')
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def marked(messages: Sequence[Message]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Messages with the same roles and entries whose texts are marks, and what each mark stands for, such as
    "messages[1].content (role tool)".

    tool_call_id and a tool's name stay as they are. They say which call a result belongs to, and a template whose
    results come in the order of the calls may leave them out.
    """
    places: dict[str, str] = {}

    def mark(place: str) -> str:
        name = f"zq{len(places)}qz"
        places[name] = place
        return name

    made = []
    for index, message in enumerate(messages):
        role = message["role"]
        copy = dict(message)
        calls = message.get("tool_calls", [])
        if message["content"] or not calls:
            copy["content"] = mark(f"messages[{index}].content (role {role})")
        if "name" in message and role != "tool":
            copy["name"] = mark(f"messages[{index}].name")
        if calls:
            copy["tool_calls"] = []
        for at, call in enumerate(calls):
            place = f"messages[{index}].tool_calls[{at}]"
            function = {"name": mark(place), "arguments": {"value": mark(place)}}
            copy["tool_calls"].append({**call, "function": function})
        made.append(copy)
    return made, places


def _message(message: object, where: str) -> dict[str, Any]:
    given = _entries(message, where)
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise OptionError(f"{where}.role is {_what(role)}: use one of {', '.join(ROLES)}")
    _only(given, _ENTRIES.get(role, ("role", "content", "name")), where, f"a message of role {role}")
    made: dict[str, Any] = {"role": role}
    calls = given.get("tool_calls")
    made["content"] = (
        "" if calls and given.get("content") is None else _content(given.get("content"), f"{where}.content")
    )
    for name in ("name", "tool_call_id"):
        if name in given:
            made[name] = _text(given[name], f"{where}.{name}")
    if calls is not None:
        made["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    return made


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return str(content)
    if not isinstance(content, (list, tuple)) or not content:
        raise OptionError(f"{where} is {_what(content)}: give a text, or a list of text parts")
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    given = _entries(part, where)
    if given.get("type") != "text":
        raise OptionError(f"{where} is of type {_what(given.get('type'))}: only parts of type text can be read")
    _only(given, ("type", "text"), where, "a part of type text")
    return _text(given.get("text"), f"{where}.text", may_be_empty=True)


def _calls(calls: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, (list, tuple)):
        raise OptionError(f"{where} is {_what(calls)}: give a list of calls")
    return [_call(call, f"{where}[{index}]") for index, call in enumerate(calls)]


def _call(call: object, where: str) -> dict[str, Any]:
    given = _entries(call, where)
    _only(given, _CALL_ENTRIES, where, "a call")
    if given.get("type", "function") != "function":
        raise OptionError(f"{where}.type is {_what(given['type'])}: only functions can be called")
    function = _entries(given.get("function"), f"{where}.function")
    _only(function, _FUNCTION_ENTRIES, f"{where}.function", "a function")
    made: dict[str, Any] = {"id": _text(given["id"], f"{where}.id")} if "id" in given else {}
    name = _text(function.get("name"), f"{where}.function.name")
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return {**made, "type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(arguments: object, where: str) -> dict[str, Any]:
    """Arguments as a mapping of plain JSON values, whether they come as one or as its text."""
    try:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, allow_nan=False)
        made = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        made = None
    if not isinstance(made, dict):
        raise OptionError(f"{where} is {_what(arguments)}: give a JSON object, or its text")
    return made


def _entries(value: object, where: str) -> dict[str, Any]:
    """What a mapping holds, without what counts as left out."""
    if not isinstance(value, Mapping):
        raise OptionError(f"{where} is {_what(value)}: give an object with its entries")
    return {name: entry for name, entry in value.items() if not _left_out(name, entry)}


def _left_out(name: object, entry: object) -> bool:
    return entry is None or (name != "content" and isinstance(entry, list) and not entry)


def _only(given: Mapping[str, Any], known: Sequence[str], where: str, what: str) -> None:
    for name in given:
        if name not in known:
            raise OptionError(f"{where} has {shown(name)}, and {what} has only {', '.join(known)}: leave it out")


def _text(value: object, where: str, may_be_empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or may_be_empty):
        raise OptionError(f"{where} is {_what(value)}: give a text")
    return str(value)


def _what(value: object) -> str:
    return "missing" if value is None else shown(value)
