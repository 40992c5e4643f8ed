"""`lazybench calibrate`: finds LazyLLM's schedule for a model within a budget of harm, or of speed."""

from lazybench.calibration.command import main

__all__ = ["main"]
