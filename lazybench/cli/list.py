"""`lazybench list`: what there is to choose from."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from lazybench.cli.arguments import GROUPS, add_config_dir, config_name, own_datasets, read
from lazybench.config import CONF
from lazybench.data import DatasetFacts, facts


def main(argv: Sequence[str]) -> int:
    """Print methods, models, data, tasks and datasets: LazyBench's, then those of the folders given."""
    parser = ArgumentParser("lazybench list", description="Methods, models, data, tasks and datasets to choose from.")
    add_config_dir(parser, "also list those of FOLDER, which run takes with the same flag")
    places = read(parser, argv).config_dir
    known = facts.load_facts()
    own = [(f"data={name}", has) for name, has in own_datasets(CONF)]
    own += [(f"data={name}, {place}", has) for place in places for name, has in own_datasets(place)]
    for group in GROUPS:
        print(f"{group}:")
        for path in sorted((CONF / group).glob("*.yaml")):
            _show(path.stem, _first_comment(path))
        for place in places:
            for path in sorted((place / group).rglob("*.yaml")):
                name = config_name(path, place / group)
                hidden = ", hidden by LazyBench's own" if (CONF / group / f"{name}.yaml").is_file() else ""
                _show(name, _first_comment(path), f"{place}{hidden}")
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
    """Print one choice; `source` says where it comes from if it is not LazyBench's."""
    print(f"  {name:<25} {about}{f'  [{source}]' if source else ''}".rstrip())


def _about(dataset: DatasetFacts) -> str:
    records = "" if dataset.records is None else f"{dataset.records} records, "
    task = "" if dataset.task in (None, *facts.tasks()) else f", task {dataset.task}"
    return f"{records}{dataset.metric}, at most {dataset.max_new_tokens} new tokens{task}"


def _first_comment(path: Path) -> str:
    first = path.read_text("utf-8", errors="replace").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
