"""The commands and where each starts; a command's imports come with it.

A small command is a module of this folder, whose `main` takes the command's words and returns the exit code. argparse
ends the process for `--help`, and what is wrong with the words or with what they name is a `LazyBenchError`.
"""

from collections.abc import Sequence
from importlib import import_module

from lazybench.errors import LazyBenchError, suggest

USAGE = """\
LazyBench compares ways to prune prompts: LazyLLM and others on LongBench.

  lazybench run method=lazyllm task=multidoc_qa   run a method over the records of a task
  lazybench plan                                  what a run or sweep would do, and about how long it would take
  lazybench status [runs=...]                     what has become of each run: running, failed, stopped, done
  lazybench list [--config-dir FOLDER]            methods, models, experiments, tasks, datasets
  lazybench report [runs=...] [output=...]        tables, figures and a page of all runs there are
  lazybench score FILE... [--output FILE]         LongBench's scores of files of predictions
  lazybench calibrate                             find LazyLLM's schedule for a model, within a budget
  lazybench match                                 how strongly a method must prune for a speedup; tune=true: how best
  lazybench map                                   a page of which prompt tokens methods drop and revive, step by step
  lazybench speed                                 times next to the unmodified model's, for prompt lengths

Each command has --help."""

_CONFIGURED = ("run", "plan", "calibrate", "match", "map", "speed")
_SMALL = ("status", "list", "report", "score")


def start(words: Sequence[str]) -> int:
    """Start the command that the first word names, and return its exit code; `LazyBenchError` for other words."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if words else 2
    command, *rest = words
    if command in _SMALL:
        return import_module(f"lazybench.cli.{command}").main(rest)
    if command not in _CONFIGURED:
        raise LazyBenchError(f"unknown command {command!r}: {suggest(command, (*_CONFIGURED, *_SMALL))}")
    if {"--help", "-h"} & {*rest}:
        print(import_module("lazybench.cli.help").text(command, rest))
        return 0
    return import_module("lazybench.cli.app").start(command, rest)
