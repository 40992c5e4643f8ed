"""Find and read run folders without opening them for writing."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lazybench.identity import run_hash
from lazybench.store.journal import PREDICTIONS, journals
from lazybench.store.run_folder import CONFIG, ENVIRONMENT, read_settings


def run_folders(root: Path) -> list[Path]:
    """Return the folders below `root` that hold a run or its remains: records, or both files of its settings.

    Folders whose name begins with a dot are skipped.
    """
    folders = []
    for path, inner, files in os.walk(root):
        inner[:] = [name for name in inner if not name.startswith(".")]
        has_settings = {CONFIG, ENVIRONMENT} <= {*files}
        if has_settings or any(journal.name in files for journal in journals(Path(path), PREDICTIONS)):
            folders.append(Path(path))
    return sorted(folders)


def runs_of(parent: Path, settings: Mapping[str, Any], dataset_configs: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the run folders below `parent` of runs with these settings, on any machine, latest first.

    Settings and configs are those of `identity.run_hash`; a digest of None is unknown here and matches any.
    """
    for folder in sorted(run_folders(parent), key=lambda path: path.stat().st_mtime, reverse=True):
        stored, environment = read_settings(folder)
        known = {key: stored.get(key) if value is None else value for key, value in settings.items()}
        if run_hash(known, environment, dataset_configs) == folder.name:
            yield folder
