"""Ways to prune prompts, one a file."""

from lazybench.methods.base import Method, Output
from lazybench.methods.build import build_method

__all__ = ["Method", "Output", "build_method"]
