"""`lazybench list`: what there is to choose from."""

import re
import shutil
import sys
import textwrap
from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from lazybench.analysis.labels import METHODS
from lazybench.cli.arguments import GROUPS, add_config_dir, config_name, own_datasets, read
from lazybench.config import CONF
from lazybench.data import DatasetFacts, facts


def main(argv: Sequence[str]) -> int:
    """Print methods, models, data, experiments, clusters, tasks and datasets: LazyBench's, then the given folders'."""
    what = "Methods, models, data, experiments, clusters, tasks and datasets to choose from."
    parser = ArgumentParser("lazybench list", description=what)
    add_config_dir(parser, "also list those of FOLDER, which run takes with the same flag")
    places = read(parser, argv).config_dir
    known = facts.load_facts()
    own = [(f"data={name}", has) for name, has in own_datasets(CONF)]
    own += [(f"data={name}, {place}", has) for place in places for name, has in own_datasets(place)]
    for group in (*GROUPS, "experiment", "cluster"):
        print(f"{group}:")
        for path in sorted((CONF / group).glob("*.yaml")):
            paper = group == "method" and path.stem in METHODS
            _show(path.stem, _description(path), "one of the paper's five" if paper else "")
        for place in places:
            for path in sorted((place / group).rglob("*.yaml")):
                name = config_name(path, place / group)
                hidden = ", hidden by LazyBench's own" if (CONF / group / f"{name}.yaml").is_file() else ""
                _show(name, _description(path), f"{place}{hidden}")
    print("task:")
    _show(facts.ALL, "all 16 English datasets; of a folder or archive, those that it has, yours among them")
    for task in facts.task_names(known):
        _show(task, ", ".join(facts.datasets_of(task, known)))
    for source, has in own:
        for task in dict.fromkeys(of.task for name, of in has.items() if name not in known and of.task is not None):
            _show(task, ", ".join(facts.datasets_of(task, has)), source)
    print("dataset:")
    for name, of in known.items():
        _show(name, _about(of))
    for source, has in own:
        for name in (name for name in has if name not in known):
            _show(name, _about(has[name]), source)
    return 0


def _show(name: str, about: str, source: str = "") -> None:
    """Print one choice, wrapped to the terminal; `source` says where it comes from."""
    width = shutil.get_terminal_size((sys.maxsize, 0)).columns  # elsewhere a choice is one line
    text = f"  {name:<25} {about}{f'  [{source}]' if source else ''}".rstrip()
    indent = " " * (28 if width >= 80 else 4)
    print(textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


def _about(dataset: DatasetFacts) -> str:
    records = "" if dataset.records is None else f"{dataset.records} records, "
    task = "" if dataset.task in (None, *facts.tasks()) else f", task {dataset.task}"
    return f"{records}{dataset.metric}, at most {dataset.max_new_tokens} new tokens{task}"


def _description(path: Path) -> str:
    """Return the first paragraph of the comment that a file begins with; an indented line, as of a command, ends it."""
    text = path.read_text("utf-8", errors="replace").removeprefix("# @package _global_\n")
    lines = takewhile(re.compile(r"# ?[^\s#]").match, text.splitlines())
    return " ".join(line.lstrip("#").strip() for line in lines)
