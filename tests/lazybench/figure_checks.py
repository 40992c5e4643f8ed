"""What a figure holds once it is drawn, and whether it is fit for print."""

from __future__ import annotations

from itertools import combinations
from unittest import mock

from matplotlib.backends.backend_agg import RendererAgg

from lazybench.report.figures import style


def drawn(figure):
    """The texts of a figure as the renderer gets them: text, size in points, and box in inches from the top left."""
    met = []
    draw_text = RendererAgg.draw_text

    def record(renderer, gc, x, y, text, prop, angle, *rest, **more):
        draw_text(renderer, gc, x, y, text, prop, angle, *rest, **more)
        width, height, descent = renderer.get_text_width_height_descent(text, prop, False)
        box = (x, y - height + descent, x + width, y + descent)
        if angle:
            assert angle == 90
            box = (x - height + descent, y - width, x + descent, y)
        met.append((text, prop.get_size_in_points(), [end / figure.dpi for end in box]))

    with style.styled(), mock.patch.object(RendererAgg, "draw_text", record):
        figure.canvas.draw()
    return met


def whole(figure):
    """All texts of a figure, one after the other."""
    return " ".join(text for text, _, _ in drawn(figure))


def assert_fit_for_print(figure):
    """Assert that a figure is as wide as a column or page, and that its type is large enough and nowhere overlaps."""
    texts = drawn(figure)
    width, height = figure.get_size_inches()
    assert width in (style.COLUMN, style.PAGE)
    assert height < 9
    assert texts
    for text, size, (left, top, right, bottom) in texts:
        assert size >= 7, text
        assert min(left, top, width - right, height - bottom) >= -0.005, text
    for (one, _, a), (other, _, b) in combinations(texts, 2):
        apart = max(b[0] - a[2], a[0] - b[2], b[1] - a[3], a[1] - b[3])
        assert apart > -0.01, (one, other)
