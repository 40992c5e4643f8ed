"""What can be told of runs on disk without taking part in them: for `status`, plans, sweeps and reports."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from lazybench.store.journal import PREDICTIONS, journals
from lazybench.store.run_folder import CONFIG, ENVIRONMENT, SCORES


def run_folders(root: Path) -> list[Path]:
    """Folders below `root` that hold a run, or what is left of one: its records, or two of its other files.

    Folders with a dot in front are passed over.
    """
    found = []
    for place, inner, files in os.walk(root):
        inner[:] = [name for name in inner if not name.startswith(".")]
        folder = Path(place)
        others = {CONFIG, ENVIRONMENT, SCORES}.intersection(files)
        if len(others) > 1 or any(path.name in files for path in journals(folder, PREDICTIONS)):
            found.append(folder)
    return sorted(found)


def about(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a run was set to and what it ran on; empty where a file cannot be read."""
    found = []
    for name, parse in ((CONFIG, yaml.safe_load), (ENVIRONMENT, json.loads)):
        try:
            said = parse((folder / name).read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            said = None
        found.append(said if isinstance(said, dict) else {})
    return found[0], found[1]


def runs_of(place: Path, settings: Mapping[str, Any], but: tuple[str, ...] = ()) -> Iterator[Path]:
    """The run folders in `place` whose results are those of `settings`, on whatever machine, the latest first.

    Settings named in `but` may differ, and those that are None are out of reach here and taken to be the run's. Which
    records they are on says their hash, and what is asked of them their facts; or where that may differ the data's
    settings without its place.
    """
    keys = {key for key, value in settings.items() if value is not None and key not in but}

    def compared(said: Mapping[str, Any]) -> dict[str, Any]:
        found, data = {key: said[key] for key in keys & said.keys()}, said.get("data") or {}
        if "records" in keys:
            return found | {"data": data.get("datasets")}
        return found | {"data": {**data, "root": None}}

    asked = compared(json.loads(json.dumps(settings, default=str)))
    for folder in sorted(run_folders(place), key=lambda path: path.stat().st_mtime, reverse=True):
        if asked == compared(about(folder)[0]):
            yield folder


def begins_anew(folder: Path, settings: Mapping[str, Any], where: Mapping[str, Any]) -> str | None:
    """What to say where a run was begun in another folder than its own, since what decides its results changed."""
    beside = () if folder.exists() else runs_of(folder.parent, settings, but=("code", "weights", "records"))
    if (before := next(iter(beside), None)) is None:
        return None

    def parts(settings: Mapping[str, Any], where: Mapping[str, Any]) -> dict[str, Any]:
        code = {f"the code of {name}": digest for name, digest in settings.get("code", {}).items()}
        return {**settings, **where, **where.get("versions", {}), **code}

    was, now = parts(*about(before)), parts(settings, where)
    changed = [key for key in now if key not in ("data", "commit", "versions", "code") and was.get(key) != now[key]]
    return (
        f"begun in {before}; since then {', '.join(changed)} changed: results would not compare, so it begins anew in "
        f"{folder}"
    )


def scored_records(folder: Path) -> int | None:
    """How many records the scores of a run are about, failed ones included; None where there are no such scores."""
    try:
        datasets = json.loads((folder / SCORES).read_text("utf-8"))["datasets"].values()
        return sum(of["records"] + of["failed"] for of in datasets)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
