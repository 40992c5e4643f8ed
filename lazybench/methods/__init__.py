"""Ways to prune prompts, one a file."""

from lazybench.methods.base import Method, Output

__all__ = ["Method", "Output"]
