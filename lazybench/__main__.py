"""The command line, `python -m lazybench` or `lazybench`: start a command, and end bad input in one line."""

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from lazybench.errors import LazyBenchError, one_line, suggest
from lazyllm import LazyLLMError

USAGE = """\
LazyBench compares ways to prune prompts: LazyLLM and others on LongBench.

  lazybench run method=lazyllm task=multidoc_qa   run a method over the records of a task
  lazybench plan                                  show the jobs of a run or sweep, and their hours on an A100
  lazybench status [runs=...]                     show which runs are running, failed, stopped or done
  lazybench list [datasets]                       list methods, models, data, experiments and tasks, or datasets
  lazybench time [runs=...] [records=16]          time all finished runs of a model side by side
  lazybench report [runs=...] [output=...]        make tables, figures and a page of all runs
  lazybench score FILE... [--output FILE]         compute LongBench's scores of files of predictions
  lazybench match                                 find how strongly a method must prune for fewer operations
  lazybench map                                   show which prompt tokens methods prune and revive, step by step
  lazybench speed                                 measure times by prompt length

Each command has --help."""

# Commands that Hydra configures start in `cli/app.py`; each of the others is a module of `cli/` with a `main`.
CONFIGURED = ("run", "plan", "match", "map", "speed")
SIMPLE = ("status", "list", "time", "report", "score")


def script() -> int:
    """Run `main` as a process of its own: SIGTERM, which schedulers send, stops it like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    onward = "continues where it stopped" if sys.argv[1:2] in (["run"], ["match"], ["time"]) else "starts again"
    try:
        code = main()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(f"\nlazybench: stopped; the same command {onward}", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of the output has gone
        return 1


def main() -> int:
    """Run the command in `sys.argv`; bad input ends in one line and exit code 2."""
    try:
        return _run(sys.argv[1:])
    except BrokenPipeError:
        raise
    except (LazyBenchError, LazyLLMError, OSError) as error:
        print(f"lazybench: {one_line(str(error))}", file=sys.stderr)
        return 2


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if words else 2
    command, *rest = words
    if command in SIMPLE:
        return import_module(f"lazybench.cli.{command}").main(rest)
    if command not in CONFIGURED:
        raise LazyBenchError(f"unknown command {command!r}: {suggest(command, (*CONFIGURED, *SIMPLE))}")
    if {"--help", "-h"} & {*rest}:
        print(import_module("lazybench.cli.help").text(command, rest))
        return 0
    return import_module("lazybench.cli.app").main(command, rest)


if __name__ == "__main__":
    sys.exit(script())
