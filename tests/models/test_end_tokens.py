"""Which tokens end an answer, and which are control tokens, whatever one line of a model's files says."""

import json
from pathlib import Path
from typing import Any

import gguf_files
import pytest
import tiny
from gguf_files import CONTROL, NORMAL, UNUSED, USER_DEFINED

from slipstream import Engine, SamplingParams
from slipstream.models.chat_template import ChatTemplate
from slipstream.models.checkpoint import open_checkpoint
from slipstream.models.end_tokens import end_tokens
from slipstream.models.tokenizer import Tokenizer

LLAMA3 = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|eom_id|>",
]
LLAMA3_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


def metadata(
    special: list[str], template: str | None = None, kind: int = CONTROL, **roles: str | None
) -> dict[str, Any]:
    """tiny.tokenizer() with these control tokens behind its own; roles are the metadata's token ids, by name."""
    values = gguf_files.byte_level_metadata()
    tokens = values["tokenizer.ggml.tokens"][: -len(tiny.SPECIAL)] + special
    values["tokenizer.ggml.tokens"] = tokens
    values["tokenizer.ggml.token_type"] = [kind if token in special else NORMAL for token in tokens]
    values |= {f"tokenizer.ggml.{role}_token_id": tokens.index(name) for role, name in roles.items() if name}
    if template is None:
        del values["tokenizer.chat_template"]
    else:
        values["tokenizer.chat_template"] = template
    return values


def ends(tokenizer: Tokenizer) -> dict[str | None, str]:
    return {tokenizer.token_string(token): source for token, source in tokenizer.end_tokens.items()}


def test_a_chatml_file_whose_eos_is_another(tmp_path: Path) -> None:
    tokenizer = gguf_files.tokenizer(tmp_path / "m.gguf", metadata(tiny.SPECIAL, tiny.TEMPLATE, eos="<|endoftext|>"))
    assert ends(tokenizer) == {"<|endoftext|>": "settings", "<|im_end|>": "template"}


@pytest.mark.parametrize("eos", ["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"])
def test_llama_3_files_name_one_of_three(tmp_path: Path, eos: str) -> None:
    values = metadata(LLAMA3, LLAMA3_TEMPLATE, bos="<|begin_of_text|>", eos=eos)
    assert set(ends(gguf_files.tokenizer(tmp_path / "m.gguf", values))) == {
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
    }


@pytest.mark.parametrize("role", ["eos", "eot", "eom"])
def test_every_role_of_the_metadata_counts(tmp_path: Path, role: str) -> None:
    values = metadata(["<|a|>", "<|b|>"], eos="<|a|>", **({role: "<|b|>"} if role != "eos" else {}))
    expected = {"<|a|>"} if role == "eos" else {"<|a|>", "<|b|>"}
    assert set(ends(gguf_files.tokenizer(tmp_path / "m.gguf", values))) == expected


def test_every_file_of_a_directory_counts(tmp_path: Path) -> None:
    model = tiny.make(tmp_path / "model", eos_token_id=97)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [98, 99]}))
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "Z"}}))
    tokenizer = open_checkpoint(model).tokenizer()
    last = tiny.tokenizer().token_to_id("Z")
    named = {token for token, source in tokenizer.end_tokens.items() if source == "settings"}
    assert named == {97, 98, 99, last}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}[{{ m.role }}] {{ m.content }} <|stop|>\n{% endfor %}", "<|stop|>"),
        # No end of its own: the next turn's beginning ends an answer, as in GLM-4.
        ("{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}", "<|user|>"),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}<|stop|>", None),
        ("{% for m in messages %}{{ m.content }}, <|stop|>{% endfor %}", None),  # text comes first
        ("{{ raise_exception('no answers here') }}", None),
        ("{{ messages[0].content }}", None),
        ("{% for m in messages %}{{ m.content }}<|stop|><|user|>{% endfor %}", "<|stop|>"),
    ],
)
def test_the_templates_own_turn_end(template: str, expected: str | None) -> None:
    controls = {"<|stop|>": 1, "<|user|>": 2, "<|stop": 3}
    found = end_tokens((), controls, ChatTemplate(template, {}))
    assert found == ({} if expected is None else {controls[expected]: "template"})


def test_a_name_is_none_unless_it_is_a_control_token() -> None:
    assert end_tokens((7,), {"<|im_end|>": 9}, None) == {7: "settings", 9: "name"}
    assert end_tokens((7,), {}, None) == {7: "settings"}


def test_an_answer_ends_there(tmp_path: Path) -> None:
    """Before, the model went on and played both roles; the end tokens have no text, so nobody saw why."""
    path = gguf_files.with_tokenizer(
        tmp_path / "m.gguf", metadata(tiny.SPECIAL, tiny.TEMPLATE, eos="<|endoftext|>"), num_hidden_layers=1
    )
    engine = Engine.load(path)
    for name in ("<|endoftext|>", "<|im_end|>"):
        token = engine.tokenizer.encode(name)[0]
        answer = engine.generate("a", SamplingParams(max_tokens=5, logit_bias={token: 100}))
        assert (answer.token_ids, answer.finish_reason) == ((), "stop")


# --- control tokens that a file calls something else ------------------------------------------------------------------


@pytest.mark.parametrize("kind", [NORMAL, UNUSED])
def test_control_tokens_that_the_file_calls_text(tmp_path: Path, kind: int) -> None:
    special = ["<|endoftext|>", "<|turn|>", "<|im_end|>", "<|unwritten|>"]
    values = metadata(special, tiny.TEMPLATE.replace("<|im_start|>", "<|turn|>"), kind, eos="<|endoftext|>")
    tokenizer = gguf_files.tokenizer(tmp_path / "m.gguf", values)
    chat = tokenizer.encode_chat([{"role": "user", "content": "the"}])
    strings = [tokenizer.token_string(token) for token in chat]
    assert strings[0] == "<|turn|>"
    assert "<|im_end|>" in strings
    assert ends(tokenizer) == {"<|endoftext|>": "settings", "<|im_end|>": "template"}
    [remark] = tokenizer.remarks
    for name in ("<|endoftext|>", "<|turn|>", "<|im_end|>"):
        assert name in remark
        assert len(tokenizer.encode(name)) == 1
    assert "unwritten" not in remark
    assert len(tokenizer.encode("<|unwritten|>")) > 1


def test_text_stays_text(tmp_path: Path) -> None:
    """A token that merges lead to is a piece of text, whatever its name; a user-defined one is shown."""
    values = metadata(["<tool_call>"], "{{ messages[0].content }} <tool_call> the", USER_DEFINED)
    tokens, merges = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.merges"]
    values["tokenizer.ggml.tokens"] = [*tokens[:-1], "<s", "<s>", tokens[-1]]
    values["tokenizer.ggml.token_type"] = [*[NORMAL] * (len(tokens) + 1), USER_DEFINED]
    values["tokenizer.ggml.merges"] = [*merges, "< s", "<s >"]
    del values["tokenizer.ggml.eos_token_id"]
    tokenizer = gguf_files.tokenizer(tmp_path / "m.gguf", values)
    assert tokenizer.remarks == ()
    assert not tokenizer.control_token_ids
    assert tokenizer.decode(tokenizer.encode("a <s> b<tool_call>")) == "a <s> b<tool_call>"


def test_a_sound_file_has_no_remarks(tmp_path: Path) -> None:
    values = metadata(LLAMA3, LLAMA3_TEMPLATE, bos="<|begin_of_text|>", eos="<|eot_id|>")
    assert gguf_files.tokenizer(tmp_path / "m.gguf", values).remarks == ()
