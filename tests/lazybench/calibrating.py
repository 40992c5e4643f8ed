"""What several tests of `lazybench calibrate` share."""

from pathlib import Path
from typing import Any

import yaml

METHOD = "lazyllm_speedup_1.3"
# Measured times that stand for a model's: seconds by tokens, and by rows of a decode step.
TIMES = {"prompt": {n: n / 1000 for n in (16, 100, 300)}, "step": {1: 0.001, 101: 0.003}}
TIMES["unmodified step"] = {1: 0.001}


def line(command: str, model: Path, output: Path, *words: str) -> tuple[str, ...]:
    """The words of a command on a tiny model: those given, and what they leave open."""
    usual = {"model.path": model, "model.name": "tiny", "model.chat": "null", "model.limit": 300}
    usual |= {"data": "sample", "data.limit": 2, "data.tokens": 512, "task": "code", "output": output}
    if command == "calibrate":
        usual |= {"minutes": 0.01, "budget": "speedup >= 1.3"}
        usual |= {"reference": '"36%:0.7,70%:0.5"', "confirm": "true"}
    else:
        usual |= {"timing.warmup": 0, "timing.paired": "false"}
    given = {word.partition("=")[0] for word in words}
    return command, *(f"{key}={value}" for key, value in usual.items() if key not in given), *words


def method_of(calibrations: Path, half: str) -> dict[str, Any]:
    """The method that a calibration on `half` wrote for a speedup of 1.3."""
    return yaml.safe_load((calibrations / "eq1" / half / "method" / f"{METHOD}.yaml").read_text())
