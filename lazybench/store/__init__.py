"""What is on disk: run folders, their journals, locks, and what has become of each job."""

from lazybench.store.journal import Journal
from lazybench.store.run_folder import RunFolder

__all__ = ["Journal", "RunFolder"]
