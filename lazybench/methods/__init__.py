"""Methods that prune prompts, one per file."""

from lazybench.methods.base import Method, Output, Shortening, build_method
from lazybench.methods.engine import OnEngine, OneStage, describe_stages

__all__ = ["Method", "OnEngine", "OneStage", "Output", "Shortening", "build_method", "describe_stages"]
