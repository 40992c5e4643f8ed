"""Give each of several jobs on a machine a GPU of its own, where no scheduler does."""

import os
import subprocess
import tempfile
import time
from pathlib import Path

from lazybench.store.locks import Lock

_RETRY_S = 2.0
_acquired: list[Lock] = []


def claim() -> None:
    """Wait for a GPU that no other job has, and hide all others from this process.

    Call it before CUDA is first used; a process keeps its GPU until it ends.
    """
    command = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return
    uuids = dict(line.replace(" ", "").split(",") for line in output.splitlines())
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(uuids)).split(",")
    devices = [uuids.get(name.strip(), name.strip()) for name in allowed if name.strip()]
    folder = Path(tempfile.gettempdir()) / f"lazybench-gpus-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    while devices and not _acquired:
        for device in devices:
            lock = Lock(folder / f"gpu-{device}", timeout_s=0)
            if lock.acquire():
                _acquired.append(lock)
                os.environ["CUDA_VISIBLE_DEVICES"] = device
                return
            lock.close()
        time.sleep(_RETRY_S)
