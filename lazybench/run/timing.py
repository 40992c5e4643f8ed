"""Time answers, and detect those that other work on the machine slowed down."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from tqdm import tqdm

from lazybench.methods.base import Method, Output, answer
from lazybench.methods.baseline import Baseline
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt

UNMODIFIED = Baseline("baseline")
RETAKES = 3  # times that a disturbed pass is taken again at most


@dataclass(frozen=True)
class Pass:
    """One timed answer; times are in seconds."""

    output: Output
    times_s: Sequence[float]  # wall time until each new token's id was known on the host
    ttft_cpu_s: float  # CPU time of this process, all threads together, until the first new token
    generation_cpu_s: float  # CPU time until the last one
    retaken: int = 0  # how often it was taken again
    disturbed: bool = False  # whether the last take was disturbed, too

    @property
    def ttft_s(self) -> float:
        """Wall time until the first new token."""
        return self.times_s[0]

    @property
    def generation_s(self) -> float:
        """Wall time until the last one."""
        return self.times_s[-1]

    @property
    def decode_step_s(self) -> float | None:
        """Mean wall time of a decode step, in seconds; None for an answer of a single token."""
        steps = len(self.times_s) - 1
        return (self.generation_s - self.ttft_s) / steps if steps else None

    @property
    def cpu_share(self) -> float:
        """CPU time over wall time times threads, until the first token or the last, whichever is less."""
        return min(self.ttft_cpu_s / self.ttft_s, self.generation_cpu_s / self.generation_s) / torch.get_num_threads()


def timed(method: Method, prompt: Prompt, decode: Decoder, seed: int) -> Pass:
    """Time one answer of `method`."""
    output = answer(method, prompt, decode, seed)
    clock = decode.clock
    return Pass(output, clock.times, clock.cpu_times[0], clock.cpu_times[-1])


@cache
def tell_retaken(setting: str) -> None:
    """Print once per process that disturbed passes are taken again; `setting` turns that off."""
    note = f"other work on this machine slows passes down: they are taken again, up to {RETAKES} times each"
    tqdm.write(f"{note}; {setting}=0 takes every pass as it is")


def undisturbed(
    method: Method, prompt: Prompt, decode: Decoder, seed: int, least: float, setting: str = "cpu_share"
) -> Pass:
    """Time an answer of `methods.base.answer`, again if other work disturbed it, up to `RETAKES` times.

    A pass on a CPU is disturbed if its process got less CPU time than `least`, 0 to 1, times wall time times threads. A
    pass on another device is never taken again, as the process's CPU time tells nothing about it. Messages name the
    `setting` that `least` comes from.
    """
    taken = timed(method, prompt, decode, seed)
    if decode.model.device.type != "cpu":
        return taken
    for retaken in range(1, RETAKES + 1):
        if taken.cpu_share >= least:
            return taken
        tell_retaken(setting)
        taken = replace(timed(method, prompt, decode, seed), retaken=retaken)
    return replace(taken, disturbed=taken.cpu_share < least)
