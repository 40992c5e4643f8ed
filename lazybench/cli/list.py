"""`lazybench list`: list what a run can choose."""

import re
from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from lazybench.analysis.labels import METHODS
from lazybench.cli.arguments import GROUPS, add_config_dir, config_name, own_datasets, read
from lazybench.config import CONF
from lazybench.data import DatasetFacts, facts


def main(argv: Sequence[str]) -> int:
    """Print methods, models, data, experiments, clusters, tasks and datasets, each folder's after LazyBench's."""
    parser = ArgumentParser("lazybench list", description="List methods, models, data, experiments, clusters, tasks.")
    add_config_dir(parser, "also list those of FOLDER, which run takes with the same flag")
    folders = read(parser, argv).config_dir
    for group in (*GROUPS, "experiment", "cluster"):
        print(f"{group}:")
        for path in sorted((CONF / group).glob("*.yaml")):
            from_paper = group == "method" and path.stem in METHODS
            _show(path.stem, _description(path), "one of the paper's five" if from_paper else "")
        for folder in folders:
            for path in sorted((folder / group).rglob("*.yaml")):
                name = config_name(path, folder / group)
                hidden = ", hidden by LazyBench's own" if (CONF / group / f"{name}.yaml").is_file() else ""
                _show(name, _description(path), f"{folder}{hidden}")
    longbench = facts.load_facts()
    sources = [(f"data={name}", known) for name, known in own_datasets(CONF)]
    sources += [(f"data={name}, {folder}", known) for folder in folders for name, known in own_datasets(folder)]
    print("task:")
    _show(facts.ALL, "all 16 English datasets; of other data all that it has")
    for task in facts.task_names(longbench):
        _show(task, ", ".join(facts.datasets_of(task, longbench)))
    for source, known in sources:
        tasks = (known[name].task for name in known if name not in longbench)
        for task in filter(None, dict.fromkeys(tasks)):
            _show(task, ", ".join(facts.datasets_of(task, known)), source)
    print("dataset:")
    for source, known in [("", longbench), *sources]:
        for name in known:
            if not source or name not in longbench:
                _show(name, _summary(known[name]), source)
    return 0


def _show(name: str, description: str, source: str = "") -> None:
    """Print one choice and where it comes from."""
    print(f"  {name:<25} {description}{f'  [{source}]' if source else ''}".rstrip())


def _summary(dataset: DatasetFacts) -> str:
    records = "" if dataset.records is None else f"{dataset.records} records, "
    task = "" if dataset.task in (None, *facts.tasks()) else f", task {dataset.task}"
    return f"{records}{dataset.metric}, at most {dataset.max_new_tokens} new tokens{task}"


def _description(path: Path) -> str:
    """Return a config's leading comment, up to an indented or empty line."""
    text = path.read_text("utf-8", errors="replace").removeprefix("# @package _global_\n")
    lines = takewhile(re.compile(r"# ?[^\s#]").match, text.splitlines())
    return " ".join(line.lstrip("#").strip() for line in lines)
