"""Timed passes: how long an answer took, and whether other work on the machine slowed it down."""

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
# How often a disturbed pass is taken again.
RETAKES = 3


@dataclass(frozen=True)
class Pass:
    """One timed answer."""

    output: Output  # what the method gave
    times_s: Sequence[float]  # wall time until each new token's id was known on the host, in seconds
    ttft_cpu_s: float  # CPU time of this process, all its threads together, until the first new token
    generation_cpu_s: float  # CPU time until the last one
    retaken: int = 0  # how often it was taken again, having been disturbed
    disturbed: bool = False  # whether it stayed so

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
        """Mean wall time of a decode step, in seconds; None for an answer of a single token, which has none."""
        return self.mean_step_s(1, None)

    def mean_step_s(self, first: int, last: int | None) -> float | None:
        """Mean wall time of the decode steps from `first` to `last`, counted from 1, None being the end; None if none.

        Decode step n yields token n + 1.
        """
        times = self.times_s[first - 1 : None if last is None else last + 1]
        return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None

    @property
    def cpu_share(self) -> float:
        """What the process got of wall time times threads, to the first token or to the last, whichever is less."""
        return min(self.ttft_cpu_s / self.ttft_s, self.generation_cpu_s / self.generation_s) / torch.get_num_threads()


def timed(method: Method, prompt: Prompt, decode: Decoder, seed: int) -> Pass:
    """One answer of `method`, timed."""
    output = answer(method, prompt, decode, seed)
    clock = decode.clock
    return Pass(output, clock.times, clock.cpu_times[0], clock.cpu_times[-1])


@cache
def tell_retaken(setting: str) -> None:
    """Say once a job why it takes longer; `setting` is the one that turns retaking off."""
    said = f"other work on this machine slows passes down: they are taken again, up to {RETAKES} times each"
    tqdm.write(f"{said}; {setting}=0 takes every pass as it is")


def undisturbed(
    method: Method, prompt: Prompt, decode: Decoder, seed: int, least: float, setting: str = "cpu_share"
) -> Pass:
    """A pass that other work has not slowed down, or the last of several that it has.

    A pass on a CPU is disturbed if its process got less than `least` of wall time times threads, 0 to 1; it is taken
    again, up to `RETAKES` times. The process's CPU time says nothing of a pass on another device: that counts as it is.
    `setting` is where `least` comes from, for the user.
    """
    done = timed(method, prompt, decode, seed)
    if decode.model.device.type != "cpu":
        return done
    for retaken in range(1, RETAKES + 1):
        if done.cpu_share >= least:
            return done
        tell_retaken(setting)
        done = replace(timed(method, prompt, decode, seed), retaken=retaken)
    return replace(done, disturbed=done.cpu_share < least)
