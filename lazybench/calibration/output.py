"""What a calibration writes for others: the frontier, its plot, and methods that `lazybench run` takes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from statistics import fmean

import pandas as pd

from lazybench.calibration import found, method_file, plot, records, scores
from lazybench.calibration.budgets import KL, Budget
from lazybench.calibration.folder import Folder
from lazybench.calibration.found import Result
from lazybench.calibration.plan import Plan
from lazybench.calibration.study import Study
from lazybench.data import data_label
from lazybench.report.console import table
from lazybench.run.command import config_dirs
from lazybench.store.run_folder import replace


def write_frontier(folder: Folder, plan: Plan, results: Sequence[Result], study: Study) -> None:
    """Write what was measured of each record, `frontier.csv`, `tried.csv` and the plot, and print the frontier."""
    frontier = found.table(records.keep(folder.table(records.KL), found.records(results)))
    tried = pd.concat([study.tried(half) for half in plan.halves], ignore_index=True)
    _csv(folder, "frontier", frontier)
    _csv(folder, "tried", tried)
    title = f"{plan.config.model.name} on {data_label(plan.config.data)}, {plan.config.task}"
    plot.save(frontier, tried[tried["complete"]], title, folder.found / "frontier")
    header = ["found on", "speedup", "kind", "schedule", "importance", "KL on the other half"]
    header += ["less harm than keeps scaled (x)", "less harm than depth scaled (x)"]
    rows = [
        [row["half"], f"{row['speedup']:g}x", row["kind"], row["schedule"], row["importance"], _spread(row, "kl", 3)]
        + [_spread(row, name, 2) for name in found.REDUCTIONS]
        for _, row in frontier.iterrows()
    ]
    print(f"\n{table(header, rows, left=5)}\n")


def write_method(folder: Folder, plan: Plan, study: Study, budget: Budget, winners: Sequence[Result]) -> None:
    """Write the method of a budget, and its scores on the records that it was not found on; print both.

    Args:
        folder: the calibration's folder.
        plan: its settings.
        study: what measures.
        budget: the budget.
        winners: what was found for it on each half that was calibrated on.
    """
    candidates = [winner.candidate for winner in winners]
    name = f"{method_file.name_of(candidates)}_{budget.slug}"
    elsewhere = fmean(kl for winner in winners for kl in winner.kl)
    about = {
        "model": plan.config.model.name,
        "layers": study.layers,
        "weights": plan.weights,
        "data": data_label(plan.config.data),
        "task": plan.config.task,
        "limit": plan.config.model.limit,
        "half": plan.config.half,
        "ideal_speedup": [round(study.speedup(candidate), 3) for candidate in candidates],
        "kl": [round(winner.found_kl, 4) for winner in winners],
        "kl_on_the_other_half": round(elsewhere, 4),
    }
    folds = [(winner.candidate, plan.of_half(winner.half)) for winner in winners]
    replace(folder.method(name), method_file.text(budget, folds, about, _command()))
    print(f"{budget}: {' | '.join(str(candidate.schedule) for candidate in candidates)}")
    where = " and ".join(f"{winner.found_kl:.3f}" for winner in winners)
    print(f"  KL {where} where it was found, {elsewhere:.3f} on the other half")
    if budget.what == KL and elsewhere > budget.limit:
        print(f"  so it does not keep to {budget} there: more records, or a smaller limit, would")
    if plan.config.confirm:
        _confirm(folder, plan, study, name, winners)
    other = f"data.half={'second' if plan.config.half == 'first' else 'first'}"
    words = [f"method={name}", f"task={plan.config.task}", *_words("model", "data")]
    words += [other] if len(plan.halves) == 1 else []
    if places := config_dirs():  # `--config-dir` is for the method that was found
        words.append("hydra.searchpath=[" + ",".join(f'"file://{place}"' for place in places) + "]")
    print(f"  python -m lazybench run --config-dir {shlex.join([str(folder.found), *words])}")


def _command() -> str:
    """The command under way, without the folders of this machine."""
    words = [re.sub(r"^([\w.]+)=/.*/", r"\1=", word) for word in sys.argv[1:]]
    return shlex.join(["python", "-m", "lazybench", "calibrate", *words])


def _words(*sections: str) -> list[str]:
    """What the command under way says about these parts of the settings."""
    return [word for word in sys.argv[1:] if re.match(rf"({'|'.join(sections)})[.=]", word)]


def _confirm(folder: Folder, plan: Plan, study: Study, name: str, winners: Sequence[Result]) -> None:
    """Score the winners on the records that they were not found on, next to the unmodified model."""
    met, unmodified, scored = [], [], []
    for winner in winners:
        met += winner.records
        unmodified += study.scores(None, winner.records)
        scored += study.scores(winner.candidate, winner.records)
    rows = scores.records(met, unmodified, scored, plan.facts)
    rows = records.keep(folder.table(records.scores_of(name)), rows)
    compared = scores.table(rows)
    _csv(folder, f"scores_{name}", compared)
    header = ["", "records", "unmodified", "calibrated", "difference"]
    print(f"\n{table(header, [_score_row(row) for _, row in compared.iterrows()])}")
    for _, row in compared[compared["note"] != ""].iterrows():
        print(f"{row['task']}: {row['note']}")
    print(f"score loss on the other half: {scores.loss(rows):.2f}%\n")


def _csv(folder: Folder, name: str, rows: pd.DataFrame) -> None:
    replace(folder.table(name), records.text(rows))


def _spread(row: pd.Series, name: str, digits: int) -> str:
    shown = [f"{value:.{digits}f}" for value in (row[name + end] for end in ("", "_low", "_high")) if pd.notna(value)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})" if len(shown) == 3 else "".join(shown) or "-"


def _score_row(row: pd.Series) -> list[str]:
    low, high = row["difference_low"], row["difference_high"]
    interval = "" if pd.isna(low) else f" ({low:+.2f} to {high:+.2f})"
    shown = [f"{row[column]:.2f}" for column in ("unmodified", "calibrated")]
    return [row["task"], str(row["records"]), *shown, f"{row['difference']:+.2f}{interval}"]
