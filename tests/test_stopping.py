"""Stop strings and characters across tokens, against a search of the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from slipstream.stopping import StopChecker

EOS = 99


def run(
    tokens: list[bytes], stop: tuple[str, ...], max_tokens: int = 1000, eos: bool = True
) -> tuple[StopChecker, str]:
    """Pushes tokens (then EOS) one by one; the checker, and the text as it was streamed."""
    checker = StopChecker(max_tokens, {EOS}, stop, lambda token: tokens[token])
    streamed = ""
    ids: list[int] = []
    for token in [*range(len(tokens)), *([EOS] if eos else [])]:
        done = checker.push(token, "target")
        pieces = checker.release()
        streamed += "".join(piece.text for piece in pieces)
        ids += [piece.token_id for piece in pieces]
        assert checker.text.startswith(streamed)  # nothing that was shown is taken back
        if done:
            assert tuple(ids) == checker.token_ids
            break
    return checker, streamed


texts = st.text(alphabet="ab é€🌊", max_size=30)


@given(
    texts,
    st.lists(st.integers(1, 5), min_size=30, max_size=130),
    st.lists(st.text("ab é🌊", min_size=1, max_size=4), max_size=3),
)
def test_against_a_search_of_the_whole_text(text: str, sizes: list[int], stop: list[str]) -> None:
    data = text.encode()
    tokens = []
    while data:
        size = sizes.pop() if sizes else 5
        tokens.append(data[:size])
        data = data[size:]
    checker, streamed = run(tokens, tuple(stop))
    # The stop string that is complete first, token by token, decides; of several complete at once, the earliest.
    expected = text
    for count in range(1, len(tokens) + 1):
        so_far = b"".join(tokens[:count]).decode(errors="ignore")
        found = [so_far.index(string) for string in stop if string in so_far]
        if found:
            expected = so_far[: min(found)]
            break
    assert checker.text == streamed == expected
    assert checker.finish_reason == "stop"
    joined = b"".join(tokens[token] for token in checker.token_ids)
    assert joined.decode(errors="replace").startswith(expected)
    if checker.token_ids:  # no token more than the text needs
        shorter = b"".join(tokens[token] for token in checker.token_ids[:-1])
        assert not shorter.startswith(expected.encode()) or tokens[checker.token_ids[-1]] == b"" or expected == text


def test_an_unfinished_character_at_the_end() -> None:
    wave = "🌊".encode()
    checker, streamed = run([b"a", wave[:2]], ())
    assert checker.text == streamed == "a\ufffd" == (b"a" + wave[:2]).decode(errors="replace")
    checker, streamed = run([b"a", wave[:2]], (), max_tokens=2, eos=False)
    assert (checker.text, checker.finish_reason) == ("a\ufffd", "length")


def test_possible_stop_strings_are_held_back() -> None:
    tokens = [b"one", b" EN", b"D"]
    checker = StopChecker(10, (), ("END",), lambda token: tokens[token])
    checker.push(0, "draft")
    assert [piece.text for piece in checker.release()] == ["one"]
    checker.push(1, "draft")
    assert checker.release() == ()
    assert checker.push(2, "target")
    assert [(piece.text, piece.origin) for piece in checker.release()] == [(" ", "draft")]
    assert (checker.text, checker.token_ids) == ("one ", (0, 1))
