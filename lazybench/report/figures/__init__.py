"""The figures of the paper, a module each.

A module has `CAPTION`, what the figure shows; `draw`, which draws a block's runs or returns None where they lack what
it shows; and `NEEDS`, what must be run for it, as words of a command.
"""

from lazybench.report.figures import figure1, figure2, figure5, figure6, figure7

FIGURES = (figure1, figure2, figure5, figure6, figure7)
