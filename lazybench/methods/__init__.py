"""Ways to prune prompts, one a file."""

from lazybench.methods.base import Method, Output
from lazybench.methods.build import build_method
from lazybench.methods.on_engine import OnEngine
from lazybench.methods.one_stage import OneStage

__all__ = ["Method", "OnEngine", "OneStage", "Output", "build_method"]
