"""Start a command again and again, and kill start n with SIGKILL at its n-th write of a file, half of it written.

Arguments: a file that gets a line for each kill, and the command's words. A start that ends by itself ends the program,
with its exit code. Imports are done once: a start is a fork.
"""

import io
import os
import signal
import sys
from itertools import count

import torch
import transformers
from support import shortened_longbench

import lazybench.cli.app
import lazybench.data.dataset_configs
import lazybench.run.execute
from lazybench.__main__ import main

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()
table = shortened_longbench()
lazybench.data.dataset_configs._longbench = lambda: table


def kill_at_write(number: int) -> None:
    """Kill this process at its `number`-th step of writing files."""
    steps_left = number

    def step() -> bool:
        """Count a step, and return whether it is the last."""
        nonlocal steps_left
        steps_left -= 1
        return steps_left == 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def dying(function):
        def call(*args, **kwargs):
            if step():
                die()
            result = function(*args, **kwargs)
            if step():
                die()
            return result

        return call

    for name in ("fsync", "rename", "replace", "truncate", "unlink"):
        setattr(os, name, dying(getattr(os, name)))

    class Torn(io.TextIOWrapper):
        def write(self, text: str) -> int:
            if step():
                super().write(text[: len(text) // 2])
                self.flush()
                die()
            return super().write(text)

    def tearing(file, mode="r", *args, **kwargs):
        if mode not in ("a", "w") or not str(file).endswith((".jsonl", ".json", ".yaml")):
            return open(file, mode, *args, **kwargs)
        return Torn(open(file, mode + "b"), encoding="utf-8")

    for module in (lazybench.store.journal, lazybench.store.writing):
        module.open = tearing


def serve(note: str, words: list[str]) -> int:
    """Kill start after start; return the exit code of the first one that ends by itself."""
    sys.argv = ["lazybench", *words]
    for number in count(1):
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            kill_at_write(number)
            os._exit(main())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != -signal.SIGKILL:
            return status
        with open(note, "a") as file:
            file.write("killed\n")


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], sys.argv[2:]))
