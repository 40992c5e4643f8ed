"""`lazybench match`: find a method's settings for a speedup, as methods that `run` takes."""

import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

from lazybench.cli.settings import own_folders
from lazybench.config import MatchConfig
from lazybench.data import choose, data_label, load_dataset_configs
from lazybench.errors import LazyBenchError
from lazybench.identity import code_digests, hashed
from lazybench.matching.match import Matcher, split_halves
from lazybench.methods import Method, build_method
from lazybench.methods.matched import Matched
from lazybench.methods.shared import second_models
from lazybench.model import environment
from lazybench.model.decoding import check_limit
from lazybench.model.loading import load_model
from lazybench.model.prompts import build_all
from lazybench.run.resources import Resources
from lazybench.store.locks import locked
from lazybench.store.writing import replace, writing


def main(config: MatchConfig) -> Path:
    """Write a method for each speedup, resuming an earlier start; return the folder for `--config-dir`.

    Raises:
        LazyBenchError: the settings, the data, the model or the folder cannot work, or no speedup is within reach.
    """
    resources, dataset_configs, folder = Resources(), load_dataset_configs(config.data.datasets), Path(config.output)
    method = check(config, resources)
    choice = choose(config.task, config.data, dataset_configs)
    halves = split_halves([*resources.records_by_dataset(choice.datasets, config.data, config.model).values()])
    if config.tune and not all(halves.values()):
        raise LazyBenchError("a half of the records is empty: raise data.limit, or take a task with more of them")
    records = [record for half in halves.values() for record in half[: config.records]]
    prompts = build_all(resources.tokenizer(config.model), config.model, dataset_configs, records)
    machine = environment.describe(config.model)
    # Configs of one method differ in their names.
    name = str(HydraConfig.get().runtime.choices["method"]).replace("/", "_")
    with writing(folder):
        (folder / "method").mkdir(parents=True, exist_ok=True)
    with locked(folder / "measured" / f".{name}.lock", work=f"matches {name} in {folder}"):
        cache_key = _cache_key(config, method, resources, machine)
        model = load_model(config.model) if config.tune else resources.skeleton(config.model)  # to count operations
        matcher = Matcher(config, method, name, model, halves, prompts, cache_key)
        print(f"weights: {machine['weights_format']}")
        print(f"records: {data_label(config.data)}; {matcher.describe_prompts()}")
        for stem, text, message in matcher.match():
            replace(folder / "method" / f"{stem}.yaml", text)
            print(f"{stem}: {message}\n  {_run_command(folder, stem, config.task)}")
    return folder


def check(config: MatchConfig, resources: Resources) -> Method:
    """Return the method to match; `LazyBenchError` if it has no share to prune, or the model's config rules it out."""
    method, skeleton = build_method(config.method), resources.skeleton(config.model)
    for each in method.methods if isinstance(method, Matched) else [method]:
        each.pruning(0.5)  # raises if no setting controls how much is pruned
        each.check(skeleton)
        each.layer_tokens(skeleton, config.model.limit)  # raises if the computed tokens are not known
    check_limit(config.model, config.answer_tokens, skeleton)
    for trial in method.trials() if config.tune else ():
        trial.check(skeleton)
    return method


def _cache_key(config: MatchConfig, method: Method, resources: Resources, machine: dict[str, Any]) -> dict[str, Any]:
    """Return everything that a measured value depends on, besides the method's settings and the records."""
    settings = {"model": asdict(config.model), "weights": resources.weights(config.model)}
    settings |= {f"{key}_weights": weights for key, weights in second_models(method, resources.weights).items()}
    settings |= {"code": code_digests(method, {"method": config.method}, ())}
    data = {key: value for key, value in asdict(config.data).items() if key not in ("root", "limit", "half")}
    return hashed(settings, machine) | {"data": data, "answer_tokens": config.answer_tokens}


def _run_command(folder: Path, name: str, task: str) -> str:
    """Return the command that runs a method in `folder` on the model and data of this command."""
    job = HydraConfig.get()
    others = (path for path in own_folders(job) if Path(path).resolve() != folder.resolve())
    folders = [f"--config-dir={path}" for path in (folder, *others)]
    words = [word for word in job.overrides.task if re.match(r"\+*(model|data)[.=]", word)]
    return f"python -m lazybench run {shlex.join([*folders, f'method={name}', f'task={task}', *words])}"
