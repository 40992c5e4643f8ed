"""What a calibration writes for others: the frontier, its plot, and methods that `lazybench run` takes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence

import pandas as pd

from lazybench.calibration import method_file, plot, scores
from lazybench.calibration.budgets import Budget
from lazybench.calibration.folder import Folder
from lazybench.calibration.harm import Candidate
from lazybench.calibration.plan import Plan
from lazybench.calibration.study import Study
from lazybench.console import table
from lazybench.data import data_label
from lazybench.methods.lazyllm import PAPER, PLUS
from lazybench.store import replace


def write_frontier(folder: Folder, plan: Plan, frontier: pd.DataFrame, study: Study) -> None:
    """Write `frontier.csv`, `tried.csv` and the plot, and print the frontier."""
    tried = pd.concat([study.tried(half) for half in plan.halves], ignore_index=True)
    _csv(folder, "frontier", frontier)
    _csv(folder, "tried", tried)
    title = f"{plan.config.model.name} on {data_label(plan.config.data)}, {plan.config.task}"
    plot.save(frontier, tried[tried["complete"]], title, folder.path / "frontier")
    header = ["found on", "speedup", "kind", "schedule", "importance", "KL on the other half", "to keeps", "to depth"]
    rows = [
        [row["half"], f"{row['speedup']:g}x", row["kind"], row["schedule"], row["importance"]]
        + [_spread(row, name) for name in ("kl", "to_keeps", "to_depth")]
        for _, row in frontier.iterrows()
    ]
    print(f"\n{table(header, rows, left=5)}\n")


def write_method(folder: Folder, plan: Plan, study: Study, budget: Budget, candidates: Sequence[Candidate]) -> None:
    """Write the method of a budget, and its scores on the records that it was not found on; print both.

    Args:
        folder: the calibration's folder.
        plan: its settings.
        study: what measures.
        budget: the budget.
        candidates: what was found for it on each half that was calibrated on.
    """
    crossed = len(plan.halves) > 1
    plus = any(not candidate.importance.is_eq1 for candidate in candidates)
    name = f"{PLUS if plus else PAPER}_{budget.slug}{'_cross' if crossed else ''}"
    about = {
        "model": plan.config.model.name,
        "layers": study.layers,
        "weights": plan.weights,
        "data": data_label(plan.config.data),
        "task": plan.config.task,
        "limit": plan.config.model.limit,
        "half": plan.config.half,
        "ideal_speedup": [round(study.speedup(candidate), 3) for candidate in candidates],
    }
    folds = [(candidate, plan.of_half(half)) for candidate, half in zip(candidates, plan.halves, strict=True)]
    replace(folder.method(name), method_file.text(budget, folds, about, _command()))
    print(f"{budget}: {' | '.join(str(candidate.schedule) for candidate in candidates)}")
    if plan.config.confirm:
        compared = _confirm(plan, study, candidates)
        _csv(folder, f"scores_{name}", compared)
        header = ["", "records", "unmodified", "calibrated", "difference"]
        print(f"\n{table(header, [_score_row(row) for _, row in compared.iterrows()])}\n")
    other = "" if crossed else f" data.half={'second' if plan.config.half == 'first' else 'first'}"
    print(f"  python -m lazybench run --config-dir {folder.path} method={name} task={plan.config.task}{other} ...")


def _command() -> str:
    """The command under way, without the folders of this machine."""
    words = [re.sub(r"^([\w.]+)=/.*/", r"\1=", word) for word in sys.argv[1:]]
    return shlex.join(["python", "-m", "lazybench", "calibrate", *words])


def _confirm(plan: Plan, study: Study, candidates: Sequence[Candidate]) -> pd.DataFrame:
    """Scores on the records that the candidates were not found on, next to the unmodified model's."""
    records, unmodified, scored = [], [], []
    for candidate, half in zip(candidates, plan.halves, strict=True):
        others = plan.other(half)
        records += others
        unmodified += study.scores(None, others)
        scored += study.scores(candidate, others)
    return scores.table(records, unmodified, scored, plan.facts)


def _csv(folder: Folder, name: str, rows: pd.DataFrame) -> None:
    replace(folder.path / f"{name}.csv", rows.to_csv(index=False, float_format="%.5g", lineterminator="\n"))


def _spread(row: pd.Series, name: str) -> str:
    value, low, high = (row[name + end] for end in ("", "_low", "_high"))
    if pd.isna(value):
        return "-"
    return f"{value:.3f}" if pd.isna(low) else f"{value:.3f} ({low:.3f} to {high:.3f})"


def _score_row(row: pd.Series) -> list[str]:
    low, high = row["difference_low"], row["difference_high"]
    interval = "" if pd.isna(low) else f" ({low:+.2f} to {high:+.2f})"
    shown = [f"{row[column]:.2f}" for column in ("unmodified", "score")]
    return [row["task"], str(row["records"]), *shown, f"{row['difference']:+.2f}{interval}"]
