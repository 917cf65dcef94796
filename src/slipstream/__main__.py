"""The start of the command: what must be in order before anything slow is imported."""

import os
import signal
import sys

__all__ = ["main"]


def main() -> int:
    """Runs the command line in sys.argv and returns its exit code. Ctrl-C is 130 at any time, and never a traceback."""
    _open_closed_streams()
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # such as ignored, in a background job
        from slipstream.cli import main as run

        return run()
    signal.signal(signal.SIGINT, _leave)
    from slipstream.cli import main as run

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt:  # before or after what `run` catches
        return 130
    finally:
        signal.signal(signal.SIGINT, _leave)


def _leave(*_: object) -> None:
    """Ends the process at once. An exception would not do while modules are imported, or the interpreter shuts down:
    what runs there prints exceptions and goes on, or takes them for a failed import."""
    os._exit(130)


def _open_closed_streams() -> None:
    """Gives standard streams that the caller closed (`>&-`) an empty end. Otherwise the next file that is opened gets
    the number of the stream, and what is meant for the stream goes into that file."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))


if __name__ == "__main__":
    sys.exit(main())
