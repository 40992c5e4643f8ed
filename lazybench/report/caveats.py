"""What a reader of one block's numbers must know: warnings before they compare, and notes below the tables."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from lazybench.analysis.averages import ran
from lazybench.analysis.blocks import Block, Row, agree
from lazybench.analysis.labels import is_calibrated, model_title, provenance, settings_said, short
from lazybench.analysis.run_data import Run


def warnings(block: Block) -> list[str]:
    """One sentence each, for one model and data: what makes a comparison wrong."""
    return [f"{block.title}: {text}" for of in (_of_rows, _commits, _records, _unmodified) for text in of(block)]


def between_models(blocks: Sequence[Block]) -> list[str]:
    """One sentence where models' generation configs change answers in different ways; older runs do not say."""
    runs = [run for block in blocks for run in block.runs]
    told = _apart((said or "nothing", model_title(run.model)) for run in runs if (said := _generation(run)) is not None)
    return [f"models' generation configs set different things, so their answers do not compare: {told}"] if told else []


def _generation(run: Run) -> str | None:
    """What of its checkpoint's generation config changes answers; None where the run does not say."""
    stated = run.environment.get("generation_config")
    return settings_said(stated) if isinstance(stated, dict) else None


def _of_rows(block: Block) -> Iterator[str]:
    """Rows that flatter themselves, and what rows are kept apart for."""
    for row in block.rows:
        if any(run.calibrated_on for run in row.runs):
            yield f"{row.label}: its schedule was chosen on these records, so its numbers flatter it"
        if row.label.endswith(f" #{row.runs[0].digest}"):
            yield f"{row.label}: another run of the same covers the same dataset, so it is a row of its own"
    for key, values in block.differing.items():
        kept = "kept as separate rows, not to be compared with each other"
        yield f"the runs differ in {key} ({', '.join(values)}): {kept}"


def _commits(block: Block) -> Iterator[str]:
    """Code that may differ: of several commits, or of one with uncommitted changes."""
    commits = [(str(run.environment.get("commit")), row.label) for row in block.rows for run in row.runs]
    if told := _apart(commits, lambda commit: commit.replace("+", " with uncommitted changes")):
        yield f"rows from different commits, whose code may differ: {told}"
    elif "+" in (commit := commits[0][0]):
        yield f"all rows are from commit {commit.replace('+', '')} with uncommitted changes: no commit has their code"
    elif ", " in commit:
        yield f"all rows are from runs that went on at another commit, whose code may differ: {commit}"


def _records(block: Block) -> Iterator[str]:
    """Records that differ between rows, by names, by content under the same names, or by what is asked of them."""
    names: dict[str, list[tuple[frozenset[str], str]]] = {}
    facts: dict[str, list[tuple[str, str]]] = {}
    contents: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    for row in block.rows:
        finished = {name for run in row.runs if run.finished for name in run.datasets}
        for dataset, records in row.records.groupby("dataset"):
            if dataset in finished:
                names.setdefault(str(dataset), []).append((frozenset(records["_id"]), row.label))
        for run in row.runs:
            for name in run.datasets:
                facts.setdefault(name, []).append((str(run.facts[name].decisive), row.label))
            data = run.settings["data"]
            under = run.settings["task"], row.conditions, data.get("limit"), data.get("half")
            contents.setdefault(under, []).append((str(run.settings.get("records"))[:12], row.label))
    differing: dict[str, list[str]] = {}
    for dataset, found in names.items():
        differing.setdefault(_apart(found, lambda ids: f"{len(ids)} a dataset"), []).append(dataset)
    for told, datasets in differing.items():
        if told:
            yield f"the runs met different records of {', '.join(datasets)}: {told}"
    for (task, *_), found in contents.items():
        if told := _apart(found):
            yield f"the content of the records of {task} differs: {told}"
    for name, found in facts.items():
        if told := _apart(found, short):
            yield f"the facts of {name} (prompt, metric and so on) differ: {told}"


def _apart(found: Iterable[tuple[Any, str]], form: Callable[[Any], str] = str) -> str:
    """Which rows' labels go with which value; empty where all have the same value."""
    labels: dict[Any, dict[str, None]] = {}
    for value, label in found:
        labels.setdefault(value, {})[label] = None
    told = "; ".join(f"{form(value)} ({', '.join(of)})" for value, of in labels.items())
    return told if len(labels) > 1 else ""


def _unmodified(block: Block) -> Iterator[str]:
    """Runs whose unmodified model gave other answers than the baseline run on the same records."""
    baselines = [row for row in block.rows if row.method == "baseline"]
    others = [row for row in block.rows if row.method != "baseline"]
    for row, baseline in product(others, baselines):
        given, met = _answers(baseline, "prediction_digest"), _answers(row, "baseline_prediction_digest")
        shared = sorted(met.keys() & given.keys())
        different = Counter(key[0] for key in shared if met[key] != given[key])
        if different and agree(baseline.runs[0], row.runs[0]):
            yield (
                f"the unmodified model's answers beside {row.label} differ from those of {baseline.label} on "
                f"{sum(different.values())} of {len(shared)} records "
                f"({', '.join(f'{dataset} {count}' for dataset, count in different.items())})"
            )


def _answers(row: Row, column: str) -> dict[tuple[str, str], str]:
    records = ran(row.records).set_index(["dataset", "_id"])[column]
    return records[records != ""].to_dict()


def notes(block: Block) -> list[str]:
    """One sentence each: where schedules come from, what shows nothing, what was timed, and what was disturbed."""
    runs = [(row, run) for row in block.rows for run in row.runs]
    said = [f"{row.label}: {provenance(run.settings['method'])}" for row, run in runs if is_calibrated(run)]
    generation = filter(None, map(_generation, block.runs))
    said += [f"the checkpoint's generation config changes answers: it sets {of}" for of in generation]
    if found := ", ".join(sorted(floors(block))):
        said.append(f"floor: every method scores 0 on every record of {found}, so their scores show nothing")
    rows_of: dict[tuple[str, Any], dict[str, None]] = {}  # labels, by setting of `timing` and its value
    for row, run in runs:
        for setting in (run.settings.get("timing") or {}).items():
            rows_of.setdefault(setting, {})[row.label] = None
    for (name, value), labels in rows_of.items():
        whose = "" if len(labels) == len(block.rows) else f": {', '.join(labels)}"
        if name == "every" and value > 1:
            said.append(f"times, and identical tokens and answers, are of one record in {value}{whose}")
        if (name, value) == ("cpu_share", 0):
            said.append(f"no pass was looked at for other work on the machine (timing.cpu_share=0){whose}")
    retaken, stayed = block.records["retaken"].sum(), (block.records["disturbed"] == 1).sum()
    if retaken:
        said.append(f"other work disturbed passes: {retaken:g} were taken again, and {stayed} records stayed disturbed")
    if times := block.runs[0].environment.get("times"):
        said.append("times were taken apart: " + ", ".join(f"{key} {value}" for key, value in times.items()))
    return list(dict.fromkeys(said))


def floors(block: Block) -> frozenset[str]:
    """Datasets on which every method scores 0 on every record: they tell no method from another."""
    best = ran(block.records).groupby("dataset")["score"].max()
    return frozenset(best[best == 0].index)
