"""The commands and where each starts; a command's imports come with it.

A small command is a module of this folder, whose `main` takes the command's words and returns the exit code. argparse
ends the process for `--help`, and what is wrong with the words or with what they name is a `LazyBenchError`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

from lazybench.errors import LazyBenchError, suggest

USAGE = """\
LazyBench compares ways to prune prompts: LazyLLM and others on LongBench.

  lazybench run method=lazyllm task=multidoc_qa   run a method over the records of a task
  lazybench plan                                  what a run or sweep would do, and about how long it would take
  lazybench status [runs=...]                     what has become of each run: running, failed, stopped, done
  lazybench list [--config-dir FOLDER]            methods, models, tasks, datasets
  lazybench report [runs=...] [output=...]        tables, figures and a page of all runs there are
  lazybench score FILE... [--output FILE]         LongBench's scores of files of predictions
  lazybench calibrate                             find LazyLLM's schedule for a model, within a budget
  lazybench match                                 how strongly a method must prune for a measured TTFT speedup
  lazybench map                                   a page of which prompt tokens methods drop and revive, step by step
  lazybench speed                                 times next to the unmodified model's, for prompt lengths

Each command has --help."""

_CONFIGURED = ("run", "plan", "calibrate", "match", "map", "speed")
_SMALL = ("status", "list", "report", "score")
_COMPLETION = ("-sc", "--shell-completion", "--shell_completion")


def start(words: Sequence[str]) -> int:
    """Start the command that the first word names.

    Returns:
        its exit code.

    Raises:
        LazyBenchError: there is no such command, or its words are not what it takes.
    """
    command, *rest = words
    _check_text(words)
    if command in _COMPLETION:
        return _complete(words)
    if command in _SMALL:
        return import_module(f"lazybench.cli.{command}").main(rest)
    if command in _CONFIGURED and {"--help", "-h"} & {*rest}:
        print(import_module("lazybench.cli.help").text(command, rest))
        return 0
    if command in _CONFIGURED:
        return _hydra(command, rest)
    raise LazyBenchError(f"unknown command {command!r}: {suggest(command, (*_CONFIGURED, *_SMALL))}")


def _hydra(command: str, words: Sequence[str], program: str | None = None) -> int:
    from lazybench.cli import hydra_app

    return hydra_app.start(command, words, program)


def _check_text(words: Sequence[str]) -> None:
    """Raise `LazyBenchError` for a word that is no text: it can be neither printed nor written to a file."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise LazyBenchError(f"{word!a} is not valid UTF-8: write it anew, or rename the file") from None


def _complete(words: Sequence[str]) -> int:
    """Answer a completing shell: our commands for the first word, tasks, and what Hydra knows of settings."""
    script, _, line = os.environ.get("COMP_LINE", "").partition(" ")
    command, space, settings = line.lstrip().partition(" ")
    if not any(word.startswith("query=") for word in words):
        return _hydra("run", words, "lazybench")  # installs itself in the shell
    if not space:
        print(" ".join(name for name in (*_CONFIGURED, *_SMALL) if name.startswith(command)))
    elif (word := settings.rpartition(" ")[2]).startswith("task="):
        from lazybench.data.facts import load_facts, task_choices

        before, comma, last = word.removeprefix("task=").rpartition(",")
        named = [name for name in task_choices(load_facts()) if name.startswith(last)]
        print(" ".join(f"task={before}{comma}{name}" for name in named))
    elif command in _CONFIGURED:
        os.environ["COMP_LINE"] = f"{script} {settings}"  # Hydra knows the settings alone
        return _hydra("run" if command == "plan" else command, words, "lazybench")
    return 0
