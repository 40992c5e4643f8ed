"""Find and read run folders without opening them for writing."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lazybench.identity import comparable, hashed, run_hash
from lazybench.store.journal import PREDICTIONS, journals
from lazybench.store.run_folder import CONFIG, ENVIRONMENT, SCORES, read_settings


def run_folders(root: Path) -> list[Path]:
    """Return the folders below `root` that hold a run or its remains: records, or two of its other files.

    Folders whose name begins with a dot are skipped.
    """
    folders = []
    for path, inner, files in os.walk(root):
        inner[:] = [name for name in inner if not name.startswith(".")]
        others = {CONFIG, ENVIRONMENT, SCORES}.intersection(files)
        if len(others) > 1 or any(journal.name in files for journal in journals(Path(path), PREDICTIONS)):
            folders.append(Path(path))
    return sorted(folders)


def runs_of(parent: Path, settings: Mapping[str, Any], dataset_configs: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the run folders below `parent` of runs with these settings, on any machine, latest first.

    Settings and configs are those of `identity.run_hash`; a digest of None is unknown here and matches any.
    """
    for folder in _latest_first(parent):
        stored, environment = read_settings(folder)
        known = {key: stored.get(key) if value is None else value for key, value in settings.items()}
        if run_hash(known, environment, dataset_configs) == folder.name:
            yield folder


def changes_since_earlier_run(
    folder: Path, settings: Mapping[str, Any], machine: Mapping[str, Any], dataset_configs: Mapping[str, Any]
) -> str | None:
    """Return a note if a run with these settings exists, but its code, weights, records or machine have changed.

    None if there is no such run, or if `folder`, the folder of the run to start, exists.
    """
    now = hashed(settings, machine, dataset_configs)
    for before in () if folder.exists() else _latest_first(folder.parent):
        stored, environment = read_settings(before)
        was = hashed(stored, environment, dataset_configs)
        changed = [key for key in now | was if was.get(key) != now.get(key)]
        may_change = {"code", "weights", "records", *hashed({}, machine), *hashed({}, environment)}
        if not may_change.issuperset(changed) or _data(stored) != _data(settings):
            continue
        if "code" in changed:
            changed.remove("code")
            code = stored.get("code") or {}
            changed += [f"the code of {name}" for name, digest in settings["code"].items() if code.get(name) != digest]
        return (
            f"begun in {before}; since then {', '.join(changed)} changed: results would not compare, so it starts "
            f"again in {folder}"
        )
    return None


def _latest_first(parent: Path) -> list[Path]:
    return sorted(run_folders(parent), key=lambda path: path.stat().st_mtime, reverse=True)


def _data(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in comparable(settings, {}).items() if key.startswith("data.")}
