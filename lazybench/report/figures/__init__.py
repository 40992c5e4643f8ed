"""The figures, a module each: the paper's, and retrieval by depth and length.

A module has `CAPTION`, what the figure shows; `draw`, which draws a block's runs or returns None where they lack what
it shows; and `NEEDS`, what must be run for it, as words of a command, or None where only some data can be shown so.
"""

from lazybench.report.figures import depth_by_length, figure1, figure2, figure5, figure6, figure7

FIGURES = (figure1, figure2, figure5, figure6, figure7, depth_by_length)
