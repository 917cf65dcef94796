"""slipstream chat: a conversation, turn by turn."""

import sys
from collections.abc import Iterator
from contextlib import suppress

import click

from slipstream import Engine, SamplingParams
from slipstream.cli.options import EngineOptions, engine_options, examples, sampling_options, system_option
from slipstream.cli.render import figures, note, stream, visible
from slipstream.errors import OptionError, SlipstreamError
from slipstream.tools.prompt_files import decode
from slipstream.types import Completion, Message

__all__ = ["chat"]

HELP = """\
/help          this list
/clear         forget the conversation
/system TEXT   set the system message; without TEXT, show it
/stats         how the last answer came about
/exit          leave, as Ctrl-D does
Ctrl-C stops an answer. Arrow keys bring back and edit what you wrote."""

PROMPT = "> "


@click.command(
    short_help="Talk with the model.",
    epilog=examples(
        "slipstream chat",
        'slipstream chat --system "Answer in one sentence." --max-tokens 100',
        "slipstream chat --remember answers.store",
        "printf 'My name is Ada.\\nWhat is my name?\\n' | slipstream chat --max-tokens 40",
    ),
)
@system_option
@sampling_options(max_tokens=512)
@engine_options(memory=True)
def chat(system: str | None, params: SamplingParams, engine_options: EngineOptions) -> None:
    """Talk with the model: each line is a turn, and /help lists what else can be written.

    Where input or output is not a terminal, every line of standard input gets its answer on standard output.
    """
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    conversation = Conversation(engine_options.load(), params, system)
    if interactive:
        note(f"{conversation.engine.model_name}. /help lists the commands, Ctrl-D leaves.")
    for line in _typed() if interactive else _piped():
        try:
            if not conversation.take(line):
                break
        except SlipstreamError as error:
            if not interactive:
                raise
            click.echo(visible(str(error)))
        except KeyboardInterrupt:
            if not interactive:
                raise


class Conversation:
    """The turns so far, and the engine that continues them."""

    def __init__(self, engine: Engine, params: SamplingParams, system: str | None) -> None:
        self.engine = engine
        self.params = params
        self.system = system
        self.turns: list[Message] = []
        self.last: Completion | None = None

    def take(self, line: str) -> bool:
        """Handles one line, a turn or a command; False when it says to leave."""
        command, _, rest = line.strip().partition(" ")
        match command:
            case "":
                pass
            case "/help":
                click.echo(HELP)
            case "/exit":
                return False
            case "/clear":
                self.turns.clear()
            case "/system":
                if rest:
                    self.system = rest.strip()
                click.echo(f"System message: {self.system or 'none'}")
            case "/stats":
                click.echo(figures(self.last, self.engine) if self.last else "No finished answer yet.")
            case _ if command.startswith("/") and "/" not in command[1:]:
                raise OptionError(f"there is no command {command}: /help lists them")
            case _:
                self._answer(line)
        return True

    def _answer(self, text: str) -> None:
        """Prints the answer and keeps it, as far as it came before Ctrl-C, for the turns to come."""
        turns: list[Message] = [*self.turns, {"role": "user", "content": text}]
        system: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        answer, completion = stream(self.engine.stream([*system, *turns], self.params))
        self.turns = [*turns, {"role": "assistant", "content": answer}]  # only now: a refused turn leaves no trace
        if completion is None:
            raise KeyboardInterrupt
        self.last = completion


def _typed() -> Iterator[str]:
    """Lines from the terminal, with editing and history where Python has readline."""
    with suppress(ImportError):
        import readline  # noqa: F401  (input() uses it once it is there)
    while True:
        try:
            yield input(PROMPT)
        except KeyboardInterrupt:
            click.echo()
        except EOFError:
            click.echo()
            return


def _piped() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        yield decode(line.rstrip(b"\r\n"), f"line {number} of standard input")
