"""One GPU a job where several jobs share a machine and no scheduler shares out its GPUs."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from lazybench.store.locks import Lock

_LOOK_AGAIN_S = 2.0

_held: list[Lock] = []


def take(devices: Sequence[str], folder: Path | None = None) -> tuple[str, Lock]:
    """Wait for a GPU that no other job has.

    Args:
        devices: the GPUs to choose from, as `CUDA_VISIBLE_DEVICES` names them.
        folder: where the locks lie; by default one that all jobs of this machine and user share.

    Returns:
        the GPU, and the lock that keeps it for as long as it is open, at most until this process ends.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"lazybench-gpus-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    waited = False
    while True:
        for device in devices:
            lock = Lock(folder / f"gpu-{device}", patience_s=0)
            if lock.exclusive():
                return device, lock
            lock.close()
        if not waited:
            print(f"waiting for a GPU: other jobs have {', '.join(devices)}", flush=True)
            waited = True
        time.sleep(_LOOK_AGAIN_S)


def visible() -> list[str]:
    """The ids of the GPUs that this process may use: those that `CUDA_VISIBLE_DEVICES` does not hide."""
    command = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    uuids = dict(line.replace(" ", "").split(",") for line in listed.splitlines())
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return list(uuids.values())
    named = uuids | {uuid: uuid for uuid in uuids.values()}
    return [named[name.strip()] for name in allowed.split(",") if name.strip() in named]


def claim() -> None:
    """Leave this process one GPU of those it may use, for as long as it lives; call it before CUDA is first used."""
    devices = visible() if not _held else []
    if devices:
        device, lock = take(devices)
        _held.append(lock)
        os.environ["CUDA_VISIBLE_DEVICES"] = device
