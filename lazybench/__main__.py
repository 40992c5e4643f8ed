"""The command line, `python -m lazybench` or `lazybench`: signals, streams, exit code, and one line for an error."""

from __future__ import annotations

import os
import sys

from lazybench.cli import signals as stopping


def script() -> int:
    """The whole life of a process: `main`, and one line or none where a signal or the system ends it."""
    onward = "goes on where it stopped" if sys.argv[1:2] in (["run"], ["calibrate"], ["match"]) else "starts anew"
    stopping.watch(f"stopped; the same command {onward}")
    _open_closed_streams()
    try:
        code = _ended()
    except BaseException:
        # Imports and libraries make other exceptions of the one that a signal raises.
        stopping.leave_if_stopped()
        raise
    stopping.leave_if_stopped()
    stopping.unwatch()
    return code


def _open_closed_streams() -> None:
    """Give a process that was started without standard streams empty ones: else files it opens take their places."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def _ended() -> int:
    """What `main` returns, or exits with, once all it has printed is out."""
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else _fail(stop.code) if stop.code else 0
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to print cannot be
        if not isinstance(error, BrokenPipeError):
            return _fail(f"the output cannot be written: {error.strerror}")
        return code or 1
    return code


def main() -> int:
    """Run one command; bad input ends in one line and exit code 2."""
    from lazybench.cli import commands
    from lazybench.errors import LazyBenchError

    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help", "help"):
        print(commands.USAGE)
        return 0 if words else 2
    try:
        return commands.start(words)
    except LazyBenchError as error:
        return _fail(str(error))
    except BrokenPipeError:
        return 1  # who read the output has gone: there is nobody to tell
    except OSError as error:
        return _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part is not None))


def _fail(message: str) -> int:
    from lazybench.errors import one_line

    print(f"lazybench: {one_line(message)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(script())
