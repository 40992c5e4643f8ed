"""`lazybench calibrate`: search, measure what was found on other records, write it down, and print it."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lazybench.analysis.console import frame_table
from lazybench.analysis.labels import data_title, task_title
from lazybench.calibration import answers, frontier
from lazybench.calibration.budgets import KL, Budget
from lazybench.calibration.folder import Folder
from lazybench.calibration.outlook import outlook
from lazybench.calibration.search import Trial
from lazybench.calibration.setup import Setup
from lazybench.calibration.study import Study
from lazybench.config import CalibrateConfig
from lazybench.data import data_label
from lazybench.errors import LazyBenchError
from lazybench.model import environment
from lazybench.model.loading import load_model, load_skeleton
from lazybench.model.out_of_memory import ran_out
from lazybench.model.positions import check_limit
from lazybench.report.figures.footer import about, prompts
from lazybench.run.origin import config_dirs, typed

# Columns of the tables people see: title, name and form.
_FRONTIER = (
    ("found on", "half", "{}"),
    ("speedup", "speedup", "{:g}x"),
    ("kind", "kind", "{}"),
    ("schedule", "schedule", "{}"),
    ("importance", "importance", "{}"),
    ("with revivals", "speedup_with_revivals", "{:.2f}x"),
    ("KL on the other half", "kl", "{:.3f}"),
    ("less harm than keeps scaled (x)", "harm_reduction_to_keeps", "{:.2f}"),
    ("less harm than depth scaled (x)", "harm_reduction_to_depth", "{:.2f}"),
)
_SCORES = (
    ("", "task", "{}"),
    ("records", "records", "{}"),
    ("unmodified", "unmodified", "{:.2f}"),
    ("calibrated", "calibrated", "{:.2f}"),
    ("difference", "difference", "{:+.2f}"),
)


def main(config: CalibrateConfig) -> Path:
    """Calibrate, or go on where an earlier start of the same calibration stopped.

    Returns:
        the folder of what was found.

    Raises:
        LazyBenchError: anything about the settings, the data, the model or the folder that cannot work.
    """
    setup = Setup.of(config)
    where = environment.describe(config.model)
    print(f"weights: {where['weights_format']}")
    print(f"records: {data_label(config.data)}; {len(setup.records)} of them")
    if setup.left_out:
        print(setup.left_out)
    check_limit(config.model, setup.new_tokens, load_skeleton(config.model))
    with Folder(setup.folder(where), f"{setup.slug}/{config.half}").opened(setup.settings, where) as folder:
        model = load_model(config.model)
        try:
            _calibrate(setup, Study(setup, model, folder), folder, where)
        except Exception as error:
            if not ran_out(error):
                raise
            raise LazyBenchError(
                f"out of memory: set model.limit below {config.model.limit} or answer_tokens below "
                f"{config.answer_tokens}; what was measured is kept"
            ) from error
        print(f"\nsaved in {folder.found}")
    return folder.found


def _calibrate(setup: Setup, study: Study, folder: Folder, where: Mapping[str, Any]) -> None:
    print(outlook(setup, study.compared, study.seconds), flush=True)
    for half in setup.halves:
        study.search(half)
    task = "" if setup.config.task == "all" else task_title(setup.config.task)
    said = [data_title(data_label(setup.config.data)), task, prompts(study.prompt_tokens)]
    of = about(setup.config.model.name, *([where[key]] for key in ("weights_format", "dtype", "device")), said)
    table = frontier.write(folder, of, study.held_out(), study.tried())
    print(f"\n{frame_table(table, _FRONTIER, left=5)}\n")
    for budget in setup.budgets:
        found = {half: study.choose(budget, half) for half in setup.halves}
        if missed := [half for half, trial in found.items() if trial is None]:
            print(
                f"{budget}: no schedule found on the {' and the '.join(missed)} half keeps to it: try lower speedups, "
                f"such as speedups=[{1 + (setup.speedups[0] - 1) / 2:g}]"
            )
        else:
            _write_method(setup, study, folder, budget, found)


def _write_method(setup: Setup, study: Study, folder: Folder, budget: Budget, found: Mapping[str, Trial]) -> None:
    """Write the method of a budget, and its scores on the records that it was not found on; print both."""
    name = study.write_method(budget, found, typed("calibrate"))
    elsewhere = study.kl_elsewhere(found)
    print(f"{budget}: {' | '.join(str(trial.candidate.schedule) for trial in found.values())}")
    where = " and ".join(f"{trial.kl:.3f}" for trial in found.values())
    print(f"  KL {where} where it was found, {elsewhere:.3f} on the other half")
    if budget.what == KL and elsewhere > budget.limit:
        print(f"  so {budget} is not met there: calibrate on more records, or with a stricter budget")
    if setup.config.confirm:
        parts = [study.answers(trial.candidate, setup.other(half)) for half, trial in found.items()]
        rows = folder.write_records(f"scores_{name}", pd.concat(parts))
        scores = answers.table(rows)
        folder.write_table(f"scores_{name}", scores)
        print(f"\n{frame_table(scores, _SCORES)}")
        for _, row in scores[scores["note"] != ""].iterrows():
            print(f"{row['task']}: {row['note']}")
        print(f"score loss on the other half: {answers.loss(rows):.2f}%\n")
    words = [f"method={name}", f"task={setup.config.task}"]
    words += [word for word in sys.argv[1:] if re.match(r"(model|data)[.=]", word)]
    if len(setup.halves) == 1:
        words.append(f"data.half={'second' if setup.config.half == 'first' else 'first'}")
    words += [f"--config-dir={place}" for place in config_dirs()]
    print(f"  python -m lazybench run --config-dir {shlex.join([str(folder.found), *words])}")
