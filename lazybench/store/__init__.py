"""What is on disk: run folders, their journals and locks."""

from lazybench.store.journal import Journal
from lazybench.store.run_folder import RunFolder

__all__ = ["Journal", "RunFolder"]
