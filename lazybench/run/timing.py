"""Timed passes: how long an answer took, and whether other work on the machine slowed it down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from lazybench.methods.base import Method, Output, answer
from lazybench.methods.baseline import Baseline
from lazybench.model.decoding import Decoder
from lazybench.model.prompts import Prompt

UNMODIFIED = Baseline("baseline")
# How often a disturbed pass is taken again.
RETAKES = 3


@dataclass(frozen=True)
class Pass:
    """One timed answer.

    Attributes:
        output: what the method gave.
        ttft_s: wall time until the first new token's id was known on the host, in seconds.
        generation_s: wall time until the last one's.
        ttft_cpu_s: CPU time of this process, all its threads together, until the first new token.
        generation_cpu_s: CPU time until the last one.
        retaken: how often it was taken again, having been disturbed.
        disturbed: whether it stayed so.
    """

    output: Output
    ttft_s: float
    generation_s: float
    ttft_cpu_s: float
    generation_cpu_s: float
    retaken: int = 0
    disturbed: bool = False

    @property
    def decode_step_s(self) -> float | None:
        """Mean wall time of a decode step, in seconds; None for an answer of a single token, which has none."""
        steps = len(self.output.tokens) - 1
        return (self.generation_s - self.ttft_s) / steps if steps else None

    @property
    def cpu_share(self) -> float:
        """What the process got of wall time times threads, to the first token or to the last, whichever is less."""
        return min(self.ttft_cpu_s / self.ttft_s, self.generation_cpu_s / self.generation_s) / torch.get_num_threads()


def timed(method: Method, prompt: Prompt, decode: Decoder, seed: int) -> Pass:
    """One answer of `method`, timed."""
    output = answer(method, prompt, decode, seed)
    clock = decode.clock
    return Pass(output, clock.times[0], clock.times[-1], clock.cpu_times[0], clock.cpu_times[-1])


def undisturbed(take: Callable[[], Pass], device: torch.device, least: float) -> Pass:
    """A pass that other work has not slowed down, or the last of several that it has.

    A pass on a CPU is disturbed if its process got less than a share of wall time times threads; it is taken again,
    up to `RETAKES` times. The process's CPU time says nothing of a pass on another device: that counts as it is.

    Args:
        take: takes the pass.
        device: what the model computes on.
        least: the share, 0 to 1; 0 takes every pass as it is.
    """
    done = take()
    if device.type != "cpu":
        return done
    for retaken in range(1, RETAKES + 1):
        if done.cpu_share >= least:
            return done
        done = replace(take(), retaken=retaken)
    return replace(done, disturbed=done.cpu_share < least)
