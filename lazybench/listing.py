"""`lazybench list`: what there is to choose from."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from lazybench import facts
from lazybench.arguments import read_arguments
from lazybench.conf import CONF


def main(argv: Sequence[str]) -> int:
    """Print methods, models, data, tasks and datasets."""
    parser = argparse.ArgumentParser(
        prog="lazybench list", description="Methods, models, data, tasks and datasets to choose from."
    )
    read_arguments(parser, argv)
    for group in ("method", "model", "data"):
        print(f"{group}:")
        for path in sorted((CONF / group).glob("*.yaml")):
            print(f"  {path.stem:<20} {_first_comment(path)}")
    known = facts.load_facts()
    print("task:")
    print(f"  {facts.ALL:<20} all 16 English datasets")
    for task in facts.tasks():
        print(f"  {task:<20} {', '.join(facts.datasets_of(task, known))}")
    print("dataset:")
    for name in facts.datasets_of(facts.ALL, known):
        about = known[name]
        print(f"  {name:<20} {about.records} records, {about.metric}, at most {about.max_new_tokens} new tokens")
    return 0


def _first_comment(path: Path) -> str:
    first = path.read_text("utf-8").splitlines()[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""
