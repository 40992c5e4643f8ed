"""Reads run folders."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path, PurePath
from statistics import fmean
from typing import Any

import yaml

from lazybench.config import check_name
from lazybench.errors import LazyBenchError
from lazybench.report import traces
from lazybench.report.run_data import NUMBERS, Run, table
from lazybench.store.run_folder import (
    CONFIG,
    ENVIRONMENT,
    PREDICTIONS,
    SCORES,
    TRACES,
    journals,
    scored_records,
    settled,
)


def read(folder: Path) -> Run:
    """The run in `<model>/<data>/<method>/<hash>`.

    Raises:
        LazyBenchError: a file of it cannot be read; the message names the file, and the line where there is one.
    """
    settings = _mapping(folder / CONFIG, yaml.safe_load)
    for section in ("model", "data", "method"):
        if not isinstance(settings.get(section), dict):
            raise LazyBenchError(f"{folder / CONFIG}: {section!r} is missing: not the settings of a run")
    settings = _portable(settings)
    traced = settled(row for _, row in _lines(folder, TRACES))
    kl = {key: row.get("first_token_kl") for key, row in traced.items()}
    # A record that ran twice counts once, as it does when a run goes on.
    rows = settled(map(_row, _lines(folder, PREDICTIONS)))
    scored = scored_records(folder)
    for key, row in rows.items():
        row["first_token_kl"] = _number(kl.get(key), "first_token_kl", str(folder / TRACES))
    try:
        names = settings["model"]["name"], settings["data"]["name"], settings["method"]["name"]
        settings["task"]
    except (KeyError, TypeError) as error:
        raise LazyBenchError(f"{folder / CONFIG}: {error} is missing: not the settings of a run") from None
    try:
        for key, name in zip(("model.name", "data.name"), names[:2], strict=True):
            check_name(key, name)  # figures' files are named after them
    except LazyBenchError as error:
        raise LazyBenchError(f"{folder / CONFIG}: {error}") from None
    return Run(
        *names,
        digest=folder.name,
        settings=settings,
        environment=_mapping(folder / ENVIRONMENT, json.loads),
        finished=(folder / SCORES).is_file() and (scored is None or len(rows) >= scored),
        records=table(list(rows.values())),
        traces=traces.summarise(list(traced.values()), str(folder / TRACES)),
        folder=folder,
    )


def _portable(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without the folders of the machine they come from."""
    data, model = settings.get("data") or {}, settings.get("model") or {}
    tokenizer, method = model.get("tokenizer") or {}, settings.get("method") or {}
    of_user = [(section, key) for section in (tokenizer, method) for key in section]
    for section, key in ((data, "root"), (model, "path"), *of_user):
        value = section.get(key)
        if isinstance(value, str) and PurePath(value).is_absolute():
            section[key] = PurePath(value).name
    if "command" in settings:
        settings["command"] = _placed(settings["command"])
    return settings


def _placed(value: Any) -> Any:
    """The parts of a command with `FOLDER` for the places of the machine it was given on."""
    if isinstance(value, dict):
        return {key: _placed(of) for key, of in value.items()}
    if isinstance(value, list):
        return [_placed(of) for of in value]
    return f"FOLDER/{PurePath(value).name}" if isinstance(value, str) and PurePath(value).is_absolute() else value


def _mapping(path: Path, parse: Any) -> dict[str, Any]:
    try:
        values = parse(path.read_text("utf-8"))
    except OSError as error:
        raise LazyBenchError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, yaml.YAMLError):
        values = None
    if not isinstance(values, dict):
        raise LazyBenchError(f"{path} is damaged: keys and values were expected; move the run's folder away")
    return values


def _lines(folder: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each line is, and its JSON object, of the whole run's file and of its shards'."""
    for path in journals(folder, name):
        yield from _lines_of(path)


def _lines_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines of one file; a last one that was cut short is left out, as a run leaves it out."""
    try:
        # Split at line feeds alone: texts may hold other characters that end lines.
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:  # merged just now, or never written
        return
    for number, line in enumerate(lines[:-1], start=1):
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("_id", "dataset")):
            raise LazyBenchError(f"{where} is not a record: move the file away and run again")
        yield where, row


def _row(line: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """The numbers of one line of predictions."""
    where, source = line
    repeats = source.get("repeats") or []
    if isinstance(source.get("disturbed"), bool):
        source = source | {"disturbed": int(source["disturbed"])}
    row: dict[str, Any] = {key: _number(source.get(key), key, where) for key in NUMBERS}
    if repeats:
        # The line's own count is the first seed's, its times are means over the seeds.
        counts = [_number(repeat.get("new_tokens"), "new_tokens", where) for repeat in repeats]
        row["new_tokens"] = None if None in counts else fmean(counts)
    seeds = [_number(repeat.get("score"), "score", where) for repeat in repeats]
    error = source.get("error")
    if not error and row["score"] is None:
        raise LazyBenchError(f"{where}: 'score' is missing, and no 'error' says why")
    prediction, unmodified = source.get("prediction"), source.get("baseline_prediction")
    if prediction is not None and unmodified is not None and not error:
        texts = [repeat.get("prediction") for repeat in repeats] or [prediction]
        row["identical_answer"] = fmean(text == unmodified for text in texts)
    return row | {
        "dataset": source["dataset"],
        "_id": source["_id"],
        "error": str(error) if error else "",
        "score_by_seed": "" if None in seeds else " ".join(f"{score:.6g}" for score in seeds),
        "prediction_digest": _digest(prediction),
        "baseline_prediction_digest": _digest(unmodified),
    }


def _number(value: object, key: str, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise LazyBenchError(f"{where}: {key!r} must be a number or null, not {value!r}")
    return float(value)


def _digest(text: str | None) -> str:
    return "" if text is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
