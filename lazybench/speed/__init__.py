"""`lazybench speed`: a method's times next to the unmodified model's and to the time of the work that is left."""

from lazybench.speed.command import main

__all__ = ["main"]
