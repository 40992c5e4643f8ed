"""Where tokens are pruned, and how many are kept."""

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from lazyllm.core.errors import LazyLLMError


class Stage(NamedTuple):
    """One pruning point: after decoder layer `layer` (0-based) keep the fraction `keep` of its tokens."""

    layer: int
    keep: float

    def kept(self, num_active: int) -> int:
        """Return how many active tokens are kept: `max(1, ceil(keep * num_active))`, safe from float noise."""
        return max(1, math.ceil(self.keep * num_active - 1e-9))


@dataclass(frozen=True, init=False)
class PruningSchedule:
    """The stages of LazyLLM's progressive pruning (paper, section 3.2): pairs `(layer, keep)`, in order of depth.

    `keep` is relative to the tokens that entered the stage's layer, not to the prompt: two stages that keep
    0.7 and 0.5 leave 0.35 of the prompt. `print(schedule)` shows both. Without stages nothing is pruned.

    Raises:
        LazyLLMError: not `layer >= 0` and `0 < keep <= 1`, or layers that do not increase.
    """

    stages: tuple[Stage, ...]

    def __init__(self, stages: Iterable[tuple[int, float]] = ()) -> None:
        checked = tuple(_check_stage(pair) for pair in stages)
        for (before, _), (layer, _) in itertools.pairwise(checked):
            if layer <= before:
                raise LazyLLMError(f"the layers of a schedule must increase, but layer {layer} follows layer {before}")
        object.__setattr__(self, "stages", checked)

    @classmethod
    def parse(cls, text: str, num_layers: int | None = None, layers: Sequence[int] | None = None) -> "PruningSchedule":
        """Read `layer:keep` pairs, e.g. `"10:0.7,20:0.5"` or with spaces between; an empty text prunes nothing.

        With `num_layers`, a layer may be a percentage of the depth: `p%` prunes when `p` percent of the layers have
        run, rounded to whole layers, halves up. `33%:0.7,67%:0.5` is `9:0.7,19:0.5` on 30 layers, of which 10 and 20
        have run by then, and `10:0.7,20:0.5` on 32. The stage moves to the nearest of `layers`, by default all but
        the last, to the earlier of two. Percentages of the same layer are one stage with the product of their keeps.

        Raises:
            LazyLLMError: the text is not of that form, or a value is out of range.
        """
        stages: list[Stage] = []
        for part in text.replace(",", " ").split():
            stage = _parse_stage(part, text, num_layers, layers)
            if stages and "%" in part and stages[-1].layer == stage.layer:
                stage = Stage(stage.layer, stages.pop().keep * stage.keep)
            stages.append(stage)
        return cls(stages)

    @property
    def spec(self) -> str:
        """The text that `parse` reads back, e.g. `10:0.7,20:0.5`."""
        return ",".join(f"{stage.layer}:{stage.keep!r}" for stage in self.stages)

    @property
    def pruning(self) -> tuple[Stage, ...]:
        """The stages without those that keep everything."""
        return tuple(stage for stage in self.stages if stage.keep < 1)

    @property
    def fractions(self) -> tuple[float, ...]:
        """The fraction of the prompt that is left after each stage."""
        return tuple(itertools.accumulate((stage.keep for stage in self.stages), operator.mul))

    def check(self, num_layers: int) -> None:
        """Raise `LazyLLMError` unless every stage has at least one layer of the model after it."""
        if self.stages and (deepest := self.stages[-1].layer) > num_layers - 2:
            needs = f"the model has {num_layers} layers, and a stage needs another layer after it"
            raise LazyLLMError(f"the schedule prunes after layer {deepest}, but {needs}")

    def __str__(self) -> str:
        left = zip(self.stages, self.fractions, strict=True)
        texts = [f"after layer {layer} keep {keep:g} ({part:.0%} of the prompt)" for (layer, keep), part in left]
        return "; ".join(texts) or "no pruning"


def rankable(windows: Sequence[int | None]) -> list[int]:
    """Return the layers that a stage in percent can follow: those with full attention, without the last layer."""
    return [layer for layer, window in enumerate(windows[:-1]) if window is None]


def nearest(layers: Sequence[int], to: int) -> str:
    """Return the two layers that are nearest to a layer, as text such as `3 or 5`."""
    return " or ".join(map(str, sorted(sorted(layers, key=lambda layer: abs(layer - to))[:2])))


def _parse_stage(part: str, text: str, num_layers: int | None, layers: Sequence[int] | None) -> Stage:
    layer, _, keep = part.partition(":")
    try:
        if not layer.endswith("%"):
            return _check_stage((int(layer), float(keep)))
        depth, fraction = Fraction(layer.removesuffix("%")) / 100, float(keep)
    except ValueError:
        raise LazyLLMError(f"{part!r} in the schedule {text!r} is not layer:keep, such as 10:0.7 or 33%:0.7") from None
    if num_layers is None or not 0 < depth < 1:
        raise LazyLLMError(f"{part!r} in the schedule {text!r} needs the number of layers, and 0% < depth < 100%")
    target = math.floor(depth * num_layers + Fraction(1, 2)) - 1
    nearest_layer = min(layers or range(max(1, num_layers - 1)), key=lambda layer: (abs(layer - target), layer))
    return _check_stage((nearest_layer, fraction))


def _check_stage(pair: tuple[int, float]) -> Stage:
    try:
        layer, keep = pair
        stage = Stage(operator.index(layer), float(keep))
    except (TypeError, ValueError):
        stage = Stage(-1, 0.0)
    if stage.layer < 0 or not 0 < stage.keep <= 1 or bool in map(type, pair):
        must = "a layer, from 0, and the fraction of its tokens to keep, above 0 and at most 1"
        raise LazyLLMError(f"{pair!r} is not a stage, such as (10, 0.7): {must}")
    return stage
