"""One GPU a job where several jobs share a machine and no scheduler shares out its GPUs."""

import os
import subprocess
import tempfile
import time
from pathlib import Path

from lazybench.store.locks import Lock

_LOOK_AGAIN_S = 2.0
_held: list[Lock] = []


def claim() -> None:
    """Wait for a GPU that no other job has, and leave this process that one alone: two would take wrong times.

    Call it before CUDA is first used; a process keeps its GPU as long as it lives.
    """
    command = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return
    uuids = dict(line.replace(" ", "").split(",") for line in listed.splitlines())
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(uuids)).split(",")
    devices = [uuids.get(name.strip(), name.strip()) for name in allowed if name.strip()]
    folder = Path(tempfile.gettempdir()) / f"lazybench-gpus-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    while devices and not _held:
        for device in devices:
            lock = Lock(folder / f"gpu-{device}", patience_s=0)
            if lock.take():
                _held.append(lock)
                os.environ["CUDA_VISIBLE_DEVICES"] = device
                return
            lock.close()
        time.sleep(_LOOK_AGAIN_S)
