"""Ctrl-C, and SIGTERM as schedulers send it, end a command in one line, wherever it is."""

from __future__ import annotations

# Nothing that is slow to import: until `watch` has run, Ctrl-C prints a traceback.
import _thread
import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType

# Libraries may swallow the exception that unwinds a command, or wait for threads of theirs: it has this many seconds.
_GRACE = 0.8

_stopped: int | None = None
_message = ""


def watch(message: str) -> None:
    """From here on, end with `message`, which says how to go on, on SIGINT and SIGTERM."""
    global _message
    _message = message
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as shells start what runs in the background
            signal.signal(number, _stop)


def unwatch() -> None:
    """From here on, let the process end by itself: all is done, and its exit code says how."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def leave_if_stopped() -> None:
    """End the process where a signal has come, with the exit code that shells give it: 128 and the signal's number."""
    if _stopped is None:
        return
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(_stopped)  # threads that a library had at work may crash an orderly shutdown


def _stop(number: int, frame: FrameType | None) -> None:
    global _stopped
    if _stopped is not None:
        os._exit(_stopped)  # asked twice
    _stopped = 128 + number
    try:
        os.write(2, f"\nlazybench: {_message}\n".encode())
        # Whatever libraries print of the interruption from here on is no news.
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 2)
    except OSError:
        pass  # nobody reads
    sys.unraisablehook = lambda _: None
    _thread.start_new_thread(_give_up, ())
    raise KeyboardInterrupt


def _give_up() -> None:
    time.sleep(_GRACE)
    os._exit(_stopped or 1)
