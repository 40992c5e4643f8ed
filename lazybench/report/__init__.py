"""`lazybench report`: tables, figures and one page of HTML from run folders."""

from __future__ import annotations

from lazybench.report.cli import main

__all__ = ["main"]
