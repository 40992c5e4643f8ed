"""Find and read run folders without opening them for writing."""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from lazybench.identity import comparable, hashed, run_hash
from lazybench.store.journal import PREDICTIONS, journals
from lazybench.store.run_folder import CONFIG, ENVIRONMENT, SCORES


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


def read_settings(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a run's settings and environment; empty where a file cannot be read."""
    contents = []
    for name, parse in ((CONFIG, yaml.safe_load), (ENVIRONMENT, json.loads)):
        try:
            content = parse((folder / name).read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            content = None
        contents.append(content if isinstance(content, dict) else {})
    return contents[0], contents[1]


def runs_of(
    parent: Path, settings: Mapping[str, Any], facts: Mapping[str, Any], free: Collection[str] = ()
) -> Iterator[Path]:
    """Yield the run folders below `parent` of runs with these settings, on whatever machine, the latest first.

    Args:
        parent: the folder of all runs of a method.
        settings: what `identity.run_hash` takes; a digest that is None is unknown here and may be any.
        facts: the facts of the datasets that are run.
        free: further settings that may be any.
    """
    for folder in sorted(run_folders(parent), key=lambda path: path.stat().st_mtime, reverse=True):
        stored, environment = read_settings(folder)
        if run_hash(_filled(settings, stored, free), environment, facts) == folder.name:
            yield folder


def begins_anew(
    folder: Path, settings: Mapping[str, Any], where: Mapping[str, Any], facts: Mapping[str, Any]
) -> str | None:
    """Return what to say where a run was begun in another folder, since what decides its results has changed."""
    free = ("code", "weights", "records")
    others = () if folder.exists() else runs_of(folder.parent, settings, facts, free)
    same_data = (path for path in others if _data(read_settings(path)[0]) == _data(settings))
    if (before := next(same_data, None)) is None:
        return None
    stored, environment = read_settings(before)
    was, now = hashed(_filled(settings, stored, free), environment), hashed(settings, where)
    changed = [key for key in now | was if key != "code" and was.get(key) != now.get(key)]
    code = stored.get("code") or {}
    changed += [f"the code of {name}" for name, digest in settings["code"].items() if code.get(name) != digest]
    return (
        f"begun in {before}; since then {', '.join(changed)} changed: results would not compare, so it begins anew in "
        f"{folder}"
    )


def _data(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in comparable(settings, {}).items() if key.startswith("data.")}


def _filled(settings: Mapping[str, Any], stored: Mapping[str, Any], free: Collection[str]) -> dict[str, Any]:
    """Return settings with a run's stored ones in place of those that are None or `free`."""
    return {key: stored.get(key) if value is None or key in free else value for key, value in settings.items()}


def scored_records(folder: Path) -> int | None:
    """Return how many records a run's scores cover, failed ones included; None without scores."""
    try:
        datasets = json.loads((folder / SCORES).read_text("utf-8"))["datasets"].values()
        return sum(numbers["records"] + numbers["failed"] for numbers in datasets)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
