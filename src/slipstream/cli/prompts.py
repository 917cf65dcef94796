"""Where prompts come from: the command line, a prompts file or suite, or the built-in ones."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.errors import OptionError
from slipstream.tools.prompt_files import SourcedPrompt, as_prompt, check_text, decode, read_prompts
from slipstream.tools.suites import SuitePrompt, read_suites, spread

__all__ = ["BUILT_IN", "BuiltIn", "read_standard_input", "requests_of", "suite_prompts"]


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A prompt of our own."""

    title: str
    text: str

    @property
    def where(self) -> str:
        return f"the built-in prompt “{self.title}”"


# The first three are the demo's: two whose answer repeats much of the prompt, where looking up drafts helps, and one
# where it can't. With the default model each of their answers ends by itself: a loop would flatter every drafter.
BUILT_IN = (
    BuiltIn(
        "Edit a page",
        """Change the title of this page to "Garden" and show the whole page:

```html
<html>
<head><title>Home</title></head>
<body>
<h1>Welcome</h1>
<p>Here you find the plants of the month.</p>
<p>Open from Monday to Friday, nine to five.</p>
</body>
</html>
```""",
    ),
    BuiltIn(
        "Correct a text",
        """Correct the spelling mistakes in this text:

The museum is open evry day from ten to six, exept on Mondays. Tickets cost eight euros, and children under twelve go \
in for free. Guided tours start at eleven and at three, and they last about an hour. You can leave bags and coats at \
the entrance.""",
    ),
    BuiltIn("Explain freely", "Explain in a few sentences how bread rises."),
    BuiltIn(
        "Comment code",
        """Print this Python function again with a comment above each line:

```python
def count_words(path):
    counts = {}
    with open(path) as file:
        for line in file:
            for word in line.split():
                counts[word] = counts.get(word, 0) + 1
    return counts
```""",
    ),
    BuiltIn(
        "Reword a message",
        """Make this email more polite:

Hi Tom, the report for March is still missing. I need it by Friday at noon, because the board meets on Friday \
afternoon. Send me the tables as well, and the list of open questions. Anna""",
    ),
    BuiltIn("Tell a story", "Write a short story about a lighthouse keeper who finds a message in a bottle."),
)


def read_standard_input() -> str:
    """All of standard input, without its last newline, so that `echo hello | slipstream generate -` asks "hello"."""
    where = "the prompt on standard input"
    return check_text(decode(sys.stdin.buffer.read(), where).removesuffix("\n"), where)


def requests_of(prompts: Path | None, limit: int | None, raw: bool, workload: str | None = None) -> list[SourcedPrompt]:
    """The prompts of a file, or the built-in ones."""
    if prompts is not None:
        return read_prompts(prompts, limit=limit, workload=workload, raw=raw)
    if workload is not None:
        raise OptionError(f"--as {workload} needs a file of records: name one with --prompts")
    return [SourcedPrompt(as_prompt(example.text, raw=raw), example.where) for example in BUILT_IN[:limit]]


def suite_prompts(suites: Sequence[str], data: Path | None, limit: int | None = None) -> list[SuitePrompt]:
    """The prompts of suites, as read_suites has them, or the built-in ones."""
    if suites or data is not None:
        return read_suites(suites, data, limit)
    built_in = [
        SuitePrompt(as_prompt(example.text), example.where, "built_in", index) for index, example in enumerate(BUILT_IN)
    ]
    return [built_in[index] for index in spread(len(built_in), limit)]
