"""`lazybench calibrate`: search, measure what was found on other records, write it down, and print it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lazybench.analysis.labels import data_title, task_title
from lazybench.calibration import frontier
from lazybench.calibration.setup import KL, SCORE_LOSS, Budget, Setup
from lazybench.calibration.study import Folder, Study
from lazybench.cli.match import run_command
from lazybench.config import CalibrateConfig
from lazybench.data import data_label
from lazybench.errors import LazyBenchError
from lazybench.model import environment
from lazybench.model.decoding import check_limit
from lazybench.model.device import ran_out
from lazybench.model.loading import load_model, load_skeleton
from lazybench.report.figures.speedups import frontier as draw
from lazybench.report.figures.style import about, prompts
from lazybench.run.origin import typed


def main(config: CalibrateConfig) -> Path:
    """Calibrate, or go on where an earlier start stopped; returns the folder of what was found.

    Raises:
        LazyBenchError: anything about the settings, the data, the model or the folder that cannot work.
    """
    setup = Setup.of(config)
    where = environment.describe(config.model)
    print(f"weights: {where['weights_format']}")
    print(f"records: {data_label(config.data)}; {len(setup.records)} of them")
    if setup.left_out:
        print(setup.left_out)
    new_tokens = max(prompt.builder.facts.max_new_tokens for prompt in setup.prompts.values())
    check_limit(config.model, new_tokens, load_skeleton(config.model))
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
    print(f"{setup.config.minutes:g} minutes of search at {', '.join(f'{of:g}x' for of in setup.speedups)}, and then")
    print("what is found is measured on the other half; a start of the same command goes on", flush=True)
    for half in setup.halves:
        study.search(half)
    rows, tried = folder.write("records_kl", study.held_out(), digits=6), study.tried()
    table = frontier.table(rows)
    folder.write("frontier", table)
    folder.write("tried", tried)
    task = "" if setup.config.task == "all" else task_title(setup.config.task)
    lengths = [prompt.ids.shape[1] for prompt in setup.prompts.values()]
    said = [data_title(data_label(setup.config.data)), task, prompts(lengths)]
    shown = frontier.of_all(table)
    draw(shown, tried, about(setup.config.model.name, [where], said), folder.found / "frontier")
    shown = shown.dropna(axis="columns", how="all")
    print(f"\n{shown.to_string(index=False, na_rep='', float_format='{:.4g}'.format)}\n")
    for line in frontier.beaten(table):
        print(f"warning: {line}")
    for budget in setup.budgets:
        _answer(setup, study, folder, budget)


def _answer(setup: Setup, study: Study, folder: Folder, budget: Budget) -> None:
    found = {half: study.choose(budget, half) for half in setup.halves}
    if missed := [half for half, trial in found.items() if trial is None]:
        lower = 1 + (setup.speedups[0] - 1) / 2
        halves = " and the ".join(missed)
        zero = ", or the unmodified model scores 0 there" * (budget.what == SCORE_LOSS)
        said = f"no schedule found on the {halves} half keeps to it{zero}: try lower speedups, speedups=[{lower:g}]"
        print(f"{budget}: {said}")
        return
    name, elsewhere = study.write_method(budget, found, typed("calibrate")), study.kl_elsewhere(found)
    print(f"{budget}: {' | '.join(str(trial.candidate.schedule) for trial in found.values())}")
    where = " and ".join(f"{trial.kl:.3f}" for trial in found.values())
    print(f"  KL {where} where it was found, {elsewhere:.3f} on the other half")
    if budget.what == KL and elsewhere > budget.limit:
        print(f"  so {budget} is not met there: calibrate on more records, or with a stricter budget")
    if setup.config.confirm:
        rows = pd.concat(study.answers(trial.candidate, setup.other(half)) for half, trial in found.items())
        means = 100 * rows.groupby("dataset")[["unmodified", "calibrated"]].mean().mean()
        folder.write(f"records_scores_{name}", rows, digits=6)
        score, before = means["calibrated"], means["unmodified"]
        print(f"  score {score:.2f} there, {before:.2f} of the unmodified model ({-frontier.loss(rows):+.1f}%)")
    half = () if len(setup.halves) > 1 else (f"data.half={'second' if setup.config.half == 'first' else 'first'}",)
    print(f"  {run_command(folder.found, name, setup.config.task, *half)}")
