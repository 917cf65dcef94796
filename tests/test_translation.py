"""A text in two vocabularies, however it is cut, and drafted text as the target would write it."""

import pytest
import tiny
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers
from vocabularies import OTHER, byte_level, ours

from slipstream.drafters.translation import Transcript, Translator
from slipstream.errors import ModelError
from slipstream.models.tokenizer import Tokenizer, add_around

TARGET = ours(tiny.tokenizer())
DRAFT = ours(byte_level(OTHER, ["<|im_end|>", "<other>"]))
BOTH = Translator(TARGET, DRAFT)

TEXTS = st.lists(
    st.sampled_from(["the", " the", " in", "hi", "he", " ", "\n", "日", "本", "😀", "e\u0301", " and", "1", "."]),
    max_size=40,
).map("".join)


def complete(text: bytes) -> str:
    """Without a character that is cut at the end."""
    return text.decode("utf-8", "ignore")


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, data=st.data())
def test_a_growing_text_is_what_it_is_when_whole(text: str, data: st.DataObject) -> None:
    tokens = TARGET.encode(text)
    transcript, end = Transcript(BOTH), 0
    while end < len(tokens):
        end += data.draw(st.integers(1, 7))
        before = list(transcript.tokens)
        unchanged = transcript.extend(tokens[:end])
        assert transcript.tokens[:unchanged] == before[:unchanged]
        spelled = b"".join(map(TARGET.token_bytes, tokens[:end]))
        assert transcript.tokens == DRAFT.encode(complete(spelled))
        assert complete(spelled).encode() + transcript.held == spelled


def test_most_of_a_long_text_is_not_tokenised_again() -> None:
    transcript = Transcript(BOTH)
    tokens = TARGET.encode("the 日本 in the end " * 50)
    transcript.extend(tokens[:-1])
    length = len(transcript.tokens)
    assert length - 12 < transcript.extend(tokens) <= length


def test_a_boundary_that_shifts() -> None:
    transcript = Transcript(BOTH)
    tokens = [TARGET.encode(part)[0] for part in (" ", "i", "n")]
    seen = []
    for end in range(1, 4):
        transcript.extend(tokens[:end])
        seen.append([DRAFT.token_bytes(token) for token in transcript.tokens])
    assert seen == [[b" "], [b" i"], [b" in"]]


def test_control_tokens() -> None:
    """One that both know is itself, another is the text of its name; no token spans one."""
    start, end = (TARGET.encode(name)[0] for name in ("<|im_start|>", "<|im_end|>"))
    transcript = Transcript(BOTH)
    transcript.extend([start, *TARGET.encode("t"), end, *TARGET.encode("he")])
    [theirs] = DRAFT.encode("<|im_end|>")
    assert theirs in DRAFT.control_token_ids
    assert transcript.tokens == [*DRAFT.encode("<|im_start|>t"), theirs, *DRAFT.encode("he")]
    transcript.extend([start, *TARGET.encode("t"), end, *TARGET.encode("he"), end])
    assert transcript.tokens[-1] == theirs


def test_what_is_no_text() -> None:
    byte = {TARGET.token_bytes(token): token for token in range(256)}
    transcript = Transcript(BOTH)
    transcript.extend([byte[b"\xe6"], byte[b"\x97"]])
    assert (transcript.tokens, transcript.held) == ([], b"\xe6\x97")
    transcript.extend([byte[b"\xe6"], byte[b"\x97"], byte[b"a"]])
    assert (DRAFT.decode(transcript.tokens), transcript.held) == ("\ufffda", b"")
    [end] = TARGET.encode("<|im_end|>")
    transcript.extend([byte[b"\xe6"], byte[b"\x97"], byte[b"a"], byte[b"\xf0"], end])  # cut by a control token
    assert (DRAFT.decode(transcript.tokens), transcript.held) == ("\ufffda\ufffd", b"")


def test_each_text_begins_as_its_tokenizer_wants_it() -> None:
    def beginning(name: str | None, backend: tokenizers.Tokenizer) -> Tokenizer:
        if name is not None:
            add_around(backend, backend.token_to_id(name), None)
        return ours(backend, name)

    for target_bos in (None, "<|im_start|>"):
        for draft_bos in (None, "<other>"):
            target = beginning(target_bos, tiny.tokenizer())
            draft = beginning(draft_bos, byte_level(OTHER, ["<other>"]))
            transcript = Transcript(Translator(target, draft))
            transcript.extend(target.encode("the"))
            assert transcript.tokens == draft.encode("the")


@pytest.mark.parametrize(
    ("before", "drafted", "expected"),
    [
        ("a", b" the in", [b" the", b" ", b"in"]),
        ("", b"the", [b"the"]),
        ("t", b"he", [b"h", b"e"]),  # with the committed token it would be "the"
        ("'", b"the", [b"t", b"h", b"e"]),  # alone it would be "the", but behind a quote comes "'t"
        ("", "a日本".encode()[:-1], [b"a", b"\xe6", b"\x97", b"\xa5"]),  # whole characters
        ("the", b"", []),
        ("the<|im_end|>", b"the", [b"the"]),
        ("a", b"\xff", None),
        ("a", b"a\xe6a", None),
    ],
)
def test_drafted_text(before: str, drafted: bytes, expected: list[bytes] | None) -> None:
    tokens = BOTH.to_target(TARGET.encode(before), drafted)
    assert expected == (None if tokens is None else [TARGET.token_bytes(token) for token in tokens])


def test_a_control_tokens_name_is_drafted_as_text() -> None:
    tokens = BOTH.to_target(TARGET.encode("a"), b"a<|im_end|>b")
    assert tokens is not None
    assert TARGET.decode(tokens) == "a<|im_end|>b"
    assert not TARGET.control_token_ids & set(tokens)


def test_drafted_text_inside_a_character() -> None:
    emoji = TARGET.encode("a😀")
    assert len(emoji) == 5
    for cut in range(2, 5):
        rest = b"".join(map(TARGET.token_bytes, emoji[cut:]))
        assert BOTH.to_target(emoji[:cut], rest + b" the") == [*emoji[cut:], *TARGET.encode(" the")]


def sentence_piece() -> Tokenizer:
    """Puts a space before every text, and has no line end among its pieces."""
    pieces = ["<unk>", "▁", *map(chr, range(0x21, 0x7F)), *(f"<0x{byte:02X}>" for byte in range(256)), "▁t", "▁th"]
    backend = tokenizers.Tokenizer(
        models.BPE(
            {piece: number for number, piece in enumerate(pieces)}, [("▁", "t"), ("▁t", "h")], byte_fallback=True
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return ours(backend)


def test_no_space_in_the_middle_of_a_text() -> None:
    spaced = sentence_piece()
    assert spaced.decode(spaced.encode("the")) == " the"
    transcript = Transcript(Translator(TARGET, spaced))
    tokens = TARGET.encode("and the\nthe thing 😀" * 3)
    for end in range(len(tokens) + 1):
        transcript.extend(tokens[:end])
    assert spaced.decode(transcript.tokens) == "and the\nthe thing 😀" * 3
    to_spaced = Translator(spaced, TARGET)
    drafted = to_spaced.to_target(spaced.encode("a"), b"b th")
    assert [spaced.token_string(token) for token in drafted] == ["b", "▁th"]


def test_a_tokenizer_that_cannot_spell() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    backend.decoder = decoders.ByteLevel()
    with pytest.raises(ModelError, match="the draft model's tokenizer can't spell 'c'"):
        Translator(TARGET, ours(backend))
    with pytest.raises(ModelError, match="the model's tokenizer can't spell 'c'"):
        Translator(ours(backend), TARGET)
