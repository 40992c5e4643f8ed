"""The command line: `python -m lazybench`, or `lazybench` once installed."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable

from lazybench.cli import signals as stopping
from lazybench.cli.completion import SHELL_FLAGS, complete

_USAGE = """\
LazyBench compares ways to prune prompts: LazyLLM and others on LongBench.

  lazybench run method=lazyllm task=multidoc_qa   run a method over the records of a task
  lazybench plan                                  what a run or sweep would do, and about how long it would take
  lazybench status [runs=...]                     what has become of each job: done, running, failed, missing
  lazybench list [--config-dir FOLDER]            methods, models, tasks, datasets
  lazybench report [runs=...] [out=...]           tables, figures and a page of all runs there are
  lazybench score FILE [--out FILE]               LongBench's scores of a file of predictions
  lazybench calibrate                             find LazyLLM's schedule for a model, within a budget
  lazybench speed                                 times next to the unmodified model's, for prompt lengths

Each command has --help."""


def script() -> int:
    """The whole life of a process: `main`, and one line or none where a signal or the system ends it."""
    onward = "goes on where it stopped" if sys.argv[1:2] in (["run"], ["calibrate"]) else "starts anew"
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


def _open_closed_streams() -> None:
    """Give a process that was started without standard streams empty ones: else files it opens take their places."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def main() -> int:
    """Run one command; bad input ends in one line and exit code 2."""
    from lazybench.errors import LazyBenchError

    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help", "help"):
        print(_USAGE)
        return 0 if words else 2
    command, rest = words[0], words[1:]
    try:
        _check_text(words)
        if command in SHELL_FLAGS:
            return complete(words, _COMMANDS, lambda line: _run(line, program="lazybench"))
        return _COMMANDS[command](rest) if command in _COMMANDS else _unknown(command)
    except LazyBenchError as error:
        return _fail(str(error))
    except BrokenPipeError:
        return 1  # who read the output has gone: there is nobody to tell
    except OSError as error:
        return _fail(": ".join(str(part) for part in (error.filename, error.strerror or error) if part is not None))


def _check_text(words: list[str]) -> None:
    """Raise `LazyBenchError` for a word that is no text: it can be neither printed nor written to a file."""
    from lazybench.errors import LazyBenchError

    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise LazyBenchError(f"{word!a} is not valid UTF-8: write it anew, or rename the file") from None


def _run(words: list[str], program: str = "lazybench run") -> int:
    from lazybench.cli import hydra_app

    return _hydra(hydra_app.main, program, words)


def _plan(words: list[str]) -> int:
    from lazybench.errors import LazyBenchError

    if any(word.split("=")[0] in ("--cfg", "-c") for word in words):
        raise LazyBenchError("plan shows what would be run, and --cfg the settings: lazybench run --cfg job")
    return _run(["--multirun", *words, "hydra.callbacks.sweep.plan=true"], program="lazybench plan")


def _status(words: list[str]) -> int:
    from lazybench.cli.status import main as status

    return status(words)


def _report(words: list[str]) -> int:
    from lazybench.cli.report import main as report

    return report(words)


def _calibrate(words: list[str]) -> int:
    from lazybench.cli import hydra_app

    words = [re.sub(r"^(budget|reference)=([^'\"].*)$", r'\1="\2"', word) for word in words]
    return _hydra(hydra_app.calibrate, "lazybench calibrate", words)


def _speed(words: list[str]) -> int:
    from lazybench.cli import hydra_app

    return _hydra(hydra_app.speed, "lazybench speed", words)


def _hydra(job: Callable[[], None], program: str, words: list[str]) -> int:
    from lazybench.cli import lost_jobs
    from lazybench.cli.experiments import settle
    from lazybench.cli.hydra_app import KNOWN
    from lazybench.cli.messages import check, explain, from_hydra

    # With this set Hydra raises instead of printing a traceback of its own and leaving with exit code 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # Hydra takes flags and settings in one order only; people write them in any.
    words = settle(words)
    settings = [word for word in words if not word.startswith("-") and "=" in word]
    words = [*(word for word in words if word not in settings), *settings]
    check(program, words)
    sys.argv = [program, *words]
    try:
        with warnings.catch_warnings():
            # What Hydra warns of here is bad input: a folder that is not there, two modes at once.
            for said in ("provider=.* is not available", r"\s*Running Hydra app with --multirun"):
                warnings.filterwarnings("error", message=said)
            job()
    except Exception as error:
        if lost_jobs.was_said(error) or lost_jobs.is_lost(error):
            return _fail(lost_jobs.message(error))
        if not isinstance(error, KNOWN) and not from_hydra(error):
            raise
        return _fail(explain(error))
    return 0


def _list(words: list[str]) -> int:
    from lazybench.cli.list import main as listing

    return listing(words)


def _score(words: list[str]) -> int:
    from lazybench.cli.score import main as score

    return score(words)


_COMMANDS = {
    "run": _run,
    "plan": _plan,
    "status": _status,
    "list": _list,
    "report": _report,
    "score": _score,
    "speed": _speed,
    "calibrate": _calibrate,
}


def _unknown(command: str) -> int:
    from lazybench.errors import suggest

    return _fail(f"unknown command {command!r}: {suggest(command, _COMMANDS)}")


def _fail(message: str) -> int:
    from lazybench.errors import one_line

    print(f"lazybench: {one_line(message)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(script())
