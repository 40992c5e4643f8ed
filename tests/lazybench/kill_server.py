"""Starts a command again and again and kills each start with SIGKILL, for the tests of that.

Arguments: how to kill, where to note how often, how often at most, and the command's words. `random:SECONDS` kills at a
random moment within that time; `writes:STEP` kills the n-th start at its n-th write of a file, in such steps, half of
it written. A start that ends by itself ends the program, with its exit code. Imports are done once: a start is a fork.
"""

import io
import os
import random
import signal
import sys
import time

import torch
import transformers

import lazybench.cli.app
import lazybench.run.execute
from lazybench.__main__ import main

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()


def kill_at_write(number: int) -> None:
    """Kill this process at its `number`-th step of writing files."""
    left = [number]

    def due() -> bool:
        left[0] -= 1
        return left[0] == 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def dying(function):
        def call(*args, **kwargs):
            if due():
                die()
            result = function(*args, **kwargs)
            if due():
                die()
            return result

        return call

    for name in ("fsync", "rename", "replace", "truncate", "unlink"):
        setattr(os, name, dying(getattr(os, name)))

    class Torn(io.TextIOWrapper):
        def write(self, text: str) -> int:
            if due():
                super().write(text[: len(text) // 2])
                self.flush()
                die()
            return super().write(text)

    opened = open

    def tearing(file, mode="r", *args, **kwargs):
        if mode not in ("a", "w") or not str(file).endswith((".jsonl", ".json", ".yaml")):
            return opened(file, mode, *args, **kwargs)
        return Torn(opened(file, mode + "b"), encoding="utf-8")

    for module in (lazybench.store.journal, lazybench.store.writing):
        module.open = tearing


def start(words: list[str], write: int) -> int:
    """The process id of one start, which is killed at a write; 0 means at none."""
    child = os.fork()
    if child:
        return child
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if write:
        kill_at_write(write)
    sys.argv = ["lazybench", *words]
    os._exit(main())


def serve(how: str, note: str, most: int, words: list[str]) -> int:
    """Kill start after start; returns the exit code of the one that was let alone."""
    chance = random.Random(" ".join(words))
    kind, _, amount = how.partition(":")
    for number in range(1, most + 1):
        child = start(words, number * int(amount) if kind == "writes" else 0)
        if kind == "random":
            end = time.monotonic() + chance.uniform(0, float(amount))
            while time.monotonic() < end:
                time.sleep(0.002)
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    return os.waitstatus_to_exitcode(status)
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != -signal.SIGKILL:
            return status
        with open(note, "a") as file:
            file.write("killed\n")
    return os.waitstatus_to_exitcode(os.waitpid(start(words, 0), 0)[1])


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
