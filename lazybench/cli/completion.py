"""Tab completion of the console script: eval "$(lazybench -sc install=bash)"."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

SHELL_FLAGS = ("-sc", "--shell-completion", "--shell_completion")


def complete(words: Sequence[str], commands: Iterable[str], hydra: Callable[[list[str]], int]) -> int:
    """Answer a completing shell: our own commands for the first word, Hydra's settings behind `run`.

    Args:
        words: the command line, which starts with one of `SHELL_FLAGS`.
        commands: our commands.
        hydra: runs Hydra's own completion on a command line without a command.
    """
    line = os.environ.get("COMP_LINE", "")
    if not any(word.startswith("query=") for word in words):
        return hydra(list(words))
    script, _, rest = line.partition(" ")
    command, space, settings = rest.lstrip().partition(" ")
    if not space:
        print(" ".join(name for name in commands if name.startswith(command)))
        return 0
    if command == "run":
        # Hydra knows the settings; the word `run` is ours.
        os.environ["COMP_LINE"] = f"{script} {settings}"
        return hydra(list(words))
    return 0
