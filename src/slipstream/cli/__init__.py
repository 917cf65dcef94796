"""The command line: arguments in, text out. One file a command; what commands share is in options, prompts, render.

Exit codes: 0 done, 1 `compare`, `audit` or `bench` found a difference, 2 bad input (one line on standard error), 130
stopped by Ctrl-C.
"""

import os
import sys
from collections.abc import Sequence

import click

from slipstream.cli.audit import audit
from slipstream.cli.bench import bench
from slipstream.cli.chat import chat
from slipstream.cli.compare import compare
from slipstream.cli.demo import demo
from slipstream.cli.generate import generate
from slipstream.cli.models import models
from slipstream.cli.options import examples
from slipstream.cli.plan import plan
from slipstream.cli.render import visible
from slipstream.cli.report import report
from slipstream.cli.tune import tune
from slipstream.errors import SlipstreamError

__all__ = ["cli", "main"]


class _InOrder(click.Group):
    """Lists its commands in the order in which a newcomer meets them, not by the alphabet."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)


@click.group(
    cls=_InOrder,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "slipstream demo",
        'slipstream generate "Name the primary colours."',
        "slipstream compare --limit 2",
        "slipstream models",
    ),
)
@click.version_option(package_name="slipstream", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Lossless speculative decoding: faster answers from the same model, bit for bit the same."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for command in (demo, generate, chat, compare, bench, report, plan, tune, audit, models):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code. Errors that a user can mend are one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        outcome = cli.main(arguments, prog_name="slipstream", standalone_mode=False)
        sys.stdout.flush()
    except click.Abort:
        for stream in (sys.stdout, sys.stderr):
            if stream.isatty():  # wherever Ctrl-C struck: cursor shown, no colour left on
                print("\x1b[?25h\x1b[0m", end="", file=stream, flush=True)
        return 130
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "slipstream"
        return _complain(f"{error.format_message()} Try: {command} --help")
    except (click.ClickException, SlipstreamError) as error:
        return _complain(error.format_message() if isinstance(error, click.ClickException) else str(error))
    except MemoryError:
        return _complain("there is not enough memory: use a smaller model, or one with fewer bits a weight")
    except OSError as error:  # such as a full disk behind standard output, which nothing more is written to
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _complain(f"{error.filename or 'output'}: {error.strerror}: make room, or choose another place")
    return outcome if isinstance(outcome, int) else 0


def _complain(message: str) -> int:
    print("slipstream: error:", visible(" ".join(message.split())), file=sys.stderr)
    return 2
