"""Colours of depths: the deeper, the darker on light paper and the lighter on dark paper, readable by the colour-blind.

The steps are those of ColorBrewer's sequential scheme YlGnBu.
"""

from __future__ import annotations

Colour = tuple[float, float, float]

_LIGHT = ("#fbfadf", "#edf8b1", "#c7e9b4", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8", "#253494", "#081d58")
_DARK = ("#10203c", "#1b2f66", "#253494", "#225ea8", "#1d91c0", "#41b6c4", "#7fcdbb", "#c7e9b4", "#edf8b1")


def palette(levels: int, dark: bool) -> list[tuple[str, str]]:
    """The paper and the ink of each depth, from the first stage's leftovers to what reaches the last layer, as CSS."""
    steps = [_read(text) for text in (_DARK if dark else _LIGHT)]
    papers = [_between(steps, level / (levels - 1)) for level in range(levels)]
    return [(_written(paper), "#000" if _luminance(paper) > 0.18 else "#fff") for paper in papers]


def _read(text: str) -> Colour:
    return tuple(int(text[place : place + 2], 16) / 255 for place in (1, 3, 5))


def _written(colour: Colour) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour)


def _between(steps: list[Colour], share: float) -> Colour:
    place = share * (len(steps) - 1)
    first = min(int(place), len(steps) - 2)
    return tuple(a + (place - first) * (b - a) for a, b in zip(steps[first], steps[first + 1], strict=True))


def _luminance(colour: Colour) -> float:
    """Relative luminance (WCAG 2). Black and white ink stand out alike from paper of 0.18."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
