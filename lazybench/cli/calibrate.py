"""What `lazybench calibrate` does: search, measure what was found on other records, write it down."""

from __future__ import annotations

from pathlib import Path

from lazybench.calibration import found, output
from lazybench.calibration.budgets import choose
from lazybench.calibration.folder import Folder
from lazybench.calibration.plan import Plan
from lazybench.calibration.study import Study
from lazybench.config import CalibrateConfig
from lazybench.data import data_label, left_out
from lazybench.errors import LazyBenchError
from lazybench.model import environment
from lazybench.model.loading import load_model, load_skeleton
from lazybench.model.out_of_memory import ran_out
from lazybench.run.job import check_context


def main(config: CalibrateConfig) -> Path:
    """Calibrate, or go on where an earlier start of the same calibration stopped.

    Returns:
        the folder of what was found.

    Raises:
        LazyBenchError: anything about the settings, the data, the model or the folder that cannot work.
    """
    plan = Plan.of(config)
    where = environment.describe(config.model)
    model = f"{config.model.name} ({where['weights_format']})"
    print(f"model {model}, data {config.data.name}, task {config.task}: {len(plan.records)} records")
    print(f"records: {data_label(config.data)}")
    if lacking := left_out(config.task, config.data):
        print(lacking)
    check_context(config.model, plan.new_tokens, load_skeleton(config.model))
    with Folder(plan.folder(where), f"{plan.slug}/{config.half}").opened(plan.settings, where) as folder:
        model = load_model(config.model)
        try:
            _calibrate(plan, Study(plan, model, folder), folder)
        except Exception as error:
            if not ran_out(error):
                raise
            raise LazyBenchError(
                f"out of memory: set model.limit below {config.model.limit} or answer_tokens below "
                f"{config.answer_tokens}; what was measured is kept"
            ) from error
        print(f"\nsaved in {folder.found}")
    return folder.found


def _calibrate(plan: Plan, study: Study, folder: Folder) -> None:
    for half in plan.halves:
        study.search(half, 60 * plan.config.minutes / len(plan.halves))
    results = [result for half in plan.halves for result in study.held_out(half)]
    output.write_frontier(folder, plan, results, study)
    for budget in plan.budgets:
        chosen = [choose(budget, study.winners(half), study.loss(half)) for half in plan.halves]
        missed = [half for half, trial in zip(plan.halves, chosen, strict=True) if trial is None]
        if missed:
            print(
                f"{budget}: no schedule found on the {' and the '.join(missed)} half keeps to it: give slower ones, "
                f"such as speedups=[{1 + (plan.speedups[0] - 1) / 2:g}]"
            )
        else:
            output.write_method(folder, plan, study, budget, found.calibrated(results, chosen))
