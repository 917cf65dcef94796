"""Which tokens end an answer. Model files name one and have several, and a model that runs past its own end goes on to
play the user's part."""

from collections.abc import Mapping, Sequence
from typing import Literal

from slipstream.errors import ModelError
from slipstream.models.chat_template import ChatTemplate

__all__ = ["WELL_KNOWN", "Source", "end_tokens"]

Source = Literal["settings", "template", "name"]
"""Who says that a token ends an answer: the model's settings, its chat template, or the token's well-known name."""

WELL_KNOWN = (
    "<|im_end|>",  # ChatML: Qwen, SmolLM2 and many others
    "<|endoftext|>",
    "<|eot_id|>",  # Llama 3: end of turn, of message, of text
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",  # Phi
    "<end_of_turn>",  # Gemma
    "<|END_OF_TURN_TOKEN|>",  # Command R
    "<|EOT|>",  # DeepSeek Coder
    "<｜end▁of▁sentence｜>",  # DeepSeek
    "<end_of_utterance>",
    "<eos>",
    "</s>",
)
"""Names of control tokens that end an answer in every model that has them."""

_QUESTION, _ANSWER = "A question of some words", "An answer of some words"


def end_tokens(
    named: Sequence[int], controls: Mapping[str, int], chat_template: ChatTemplate | None
) -> dict[int, Source]:
    """The ids of the tokens that end an answer, each with the first source that says so.

    named          ids that the model's settings name
    controls       the control tokens: strings and ids; those of well-known names end an answer
    chat_template  the control token that it puts behind an answer ends one
    """
    found: dict[int, Source] = dict.fromkeys(named, "settings")
    if chat_template is not None:
        follows = _behind_an_answer(chat_template)
        turn_end = max((name for name in controls if name and follows.startswith(name)), key=len, default=None)
        if turn_end is not None:
            found.setdefault(controls[turn_end], "template")
    for name in WELL_KNOWN:
        if name in controls:
            found.setdefault(controls[name], "name")
    return found


def _behind_an_answer(chat_template: ChatTemplate) -> str:
    """What the template writes behind an answer, white space left out, and all that follows; nothing where it refuses
    such a chat."""
    turns = [("user", _QUESTION), ("assistant", _ANSWER), ("user", _QUESTION)]
    try:
        text = chat_template.render([{"role": role, "content": content} for role, content in turns])
    except ModelError:
        return ""
    return text.partition(_ANSWER)[2].lstrip()
