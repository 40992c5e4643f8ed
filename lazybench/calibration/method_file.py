"""The YAML of a calibrated method, which `lazybench run` takes as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from lazybench.calibration.budgets import Budget
from lazybench.calibration.harm import Candidate
from lazybench.data import Record
from lazybench.methods.lazyllm import EQ1, PAPER, PLUS


def text(
    budget: Budget, folds: Sequence[tuple[Candidate, Sequence[Record]]], found: Mapping[str, Any], command: str
) -> str:
    """The file's text: each schedule with the records that it was found on, how it was found, and by which command."""
    method = {
        "_target_": "lazybench.methods.calibrated.Calibrated",
        "name": name_of(candidate for candidate, _ in folds),
        "budget": str(budget),
        "folds": [
            {
                "schedule": candidate.schedule.spec,
                "importance": candidate.importance.changed or EQ1,
                "records": sorted(record.hash for record in records),
            }
            for candidate, records in folds
        ],
        "found": dict(found),
    }
    head = [f"# Found by: {command}\n", *(f"# {candidate.schedule}\n" for candidate, _ in folds)]
    return "".join(head) + yaml.dump(method, Dumper=_Dumper, sort_keys=False, width=120)


def name_of(candidates: Iterable[Candidate]) -> str:
    """The method's name: LazyLLM only where all of its schedules rank by Eq. 1."""
    return PAPER if all(candidate.importance.is_eq1 for candidate in candidates) else PLUS


class _Dumper(yaml.SafeDumper):
    """Writes a list of hashes in lines, not one below the other."""


def _list(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    flat = not any(isinstance(value, dict) for value in values)
    node = dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flat)
    for value, item in zip(values, node.value, strict=True):
        if isinstance(value, str):
            item.style = '"'  # some hashes read as numbers to some readers of YAML
    return node


_Dumper.add_representer(list, _list)
