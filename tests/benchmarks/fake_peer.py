"""A system that speaks the peers' protocol. Its speculative modes draft well, or misbehave as they are called."""

import sys
import time

from protocol import PLAIN, Answer, Request, serve

if "wont_load" in sys.argv:
    sys.exit("there is no memory left")
if "hangs_while_loading" in sys.argv:
    time.sleep(600)


def answer(request: Request) -> Answer:
    """Counts from 0, modulo the prompt's first token. A token takes 0.25 s, but 0.0625 s where it was drafted."""
    tokens = [at % request.prompt[0] for at in range(request.max_tokens)]
    if request.mode == "liar":
        tokens[3] = 999
    if request.mode == "refuses":
        raise ValueError("no drafts today")
    if request.mode == "dies":
        print("a line\nout of luck", file=sys.stderr)
        sys.exit(3)
    if request.mode == "hangs":
        time.sleep(600)
    print("no part of the protocol", flush=True)
    passes = len(tokens) if request.mode == PLAIN else len(tokens) // 4
    return Answer(tokens, 2.0, 0.25 * passes, len(tokens), len(tokens), passes)


serve(lambda arguments: ("fake 1.0", answer))
