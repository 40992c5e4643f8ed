"""Describe the software and the device that a row is made with."""

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from lazybench.config import ModelConfig
from lazybench.model.device import device_of, dtype_of
from lazybench.model.loading import weights_format

# Raise it with each change of code that changes a score, a time or a column: older runs then run again.
RESULTS_VERSION = 7
_PACKAGES = ("lazybench", "torch", "transformers", "tokenizers")


def describe(config: ModelConfig) -> dict[str, Any]:
    """Return the environment that answers depend on, which enters a run's hash, and versions, which do not.

    Raises:
        LazyBenchError: the device is not available, or the model's files cannot be read.
    """
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        versions[name] = None
        with suppress(metadata.PackageNotFoundError):  # a checkout that was never installed
            versions[name] = metadata.version(name)
    return {
        "results_version": RESULTS_VERSION,
        "weights_format": weights_format(config),
        "dtype": str(dtype_of(config)).removeprefix("torch."),
        "attention": config.attention,
        "versions": versions,
    }


def source(config: ModelConfig) -> dict[str, Any]:
    """Return where and when a row is made: `device`, `commit` and `date`; `LazyBenchError` without the device."""
    name = _device_name(device_of(config))
    return {"device": name, "commit": _commit(), "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}


def _commit() -> str | None:
    """Return the commit of this checkout, with `+` for uncommitted changes; None outside a checkout."""
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    return None


def _device_name(device: torch.device) -> str:
    if device.type != "cpu":
        get_name = getattr(torch.get_device_module(device), "get_device_name", lambda device: device.type)
        return get_name(device)
    name = platform.machine()
    with suppress(OSError, KeyError), open("/proc/cpuinfo") as file:
        lines = takewhile(str.strip, file)  # of the first core
        of_cpu = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        # Virtual machines may hide the generation in the name.
        name = f"{of_cpu['model name']} (family {of_cpu['cpu family']}, model {of_cpu['model']})"
    return f"{name}, {os.cpu_count()} cores"
