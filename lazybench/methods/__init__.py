"""Ways to prune prompts, one a file."""

from lazybench.methods.base import Method, Output, build_method
from lazybench.methods.engine import OnEngine, OneStage, stages_said

__all__ = ["Method", "OnEngine", "OneStage", "Output", "build_method", "stages_said"]
