"""`lazybench list`: list the choices of a run."""

import re
from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from lazybench.cli.arguments import GROUPS, add_config_dir, config_name, own_datasets, read
from lazybench.config import CONF
from lazybench.data.dataset_configs import ALL, DatasetConfig, datasets_of, load_dataset_configs, tasks


def main(argv: Sequence[str]) -> int:
    """Print methods, models, data, experiments, clusters and tasks, or datasets; each folder's after LazyBench's."""
    parser = ArgumentParser("lazybench list", description="List methods, models, data, experiments, clusters, tasks.")
    parser.add_argument("what", nargs="?", choices=["datasets"], help="list these instead")
    add_config_dir(parser, "also list those of FOLDER, which run takes with the same flag")
    flags = read(parser, argv)
    for group in () if flags.what else (*GROUPS, "experiment", "cluster"):
        print(f"{group}:")
        for path in sorted((CONF / group).glob("*.yaml")):
            _show(path.stem, _description(path))
        for folder in flags.config_dir:
            for path in sorted((folder / group).rglob("*.yaml")):
                _show(config_name(path, folder / group), _description(path), f"{folder}")
    longbench = load_dataset_configs()
    sources = [("", longbench, [*longbench])]
    for folder in (CONF, *flags.config_dir):
        for config, configs in own_datasets(folder):
            source = f"data={config}" if folder is CONF else f"data={config}, {folder}"
            sources.append((source, configs, [name for name in configs if name not in longbench]))
    if flags.what:
        for source, configs, names in sources:
            for name in names:
                _show(name, _summary(configs[name]), source)
        return 0
    print("task:")
    _show(ALL, "all 16 English datasets; of other data all that it has")
    for source, configs, names in sources:
        for task in filter(None, dict.fromkeys(configs[name].task for name in names)):
            _show(task, ", ".join(datasets_of(task, configs)), source)
    print("datasets: lazybench list datasets")
    return 0


def _show(name: str, description: str, source: str = "") -> None:
    """Print one choice and where it comes from."""
    print(f"  {name:<25} {description}{f'  [{source}]' if source else ''}".rstrip())


def _summary(dataset: DatasetConfig) -> str:
    records = "" if dataset.records is None else f"{dataset.records} records, "
    task = "" if dataset.task in (None, *tasks()) else f", task {dataset.task}"
    return f"{records}{dataset.metric}, at most {dataset.max_new_tokens} new tokens{task}"


def _description(path: Path) -> str:
    """Return a config's leading comment, up to an indented or empty line."""
    text = path.read_text("utf-8", errors="replace").removeprefix("# @package _global_\n")
    lines = takewhile(re.compile(r"# ?[^\s#]").match, text.splitlines())
    return " ".join(line.lstrip("#").strip() for line in lines)
