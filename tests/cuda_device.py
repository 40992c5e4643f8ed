"""A CUDA GPU in place of the pretend device, where `TEST_ON_CUDA=1` asks for it."""

import warnings
from collections import Counter
from typing import Any

import pytest
import torch


class CudaDevice:
    """Like `PretendDevice`, but copies to the device count as reads, and launches are not counted."""

    def __init__(self, index: int = 0) -> None:
        if index >= torch.cuda.device_count():
            pytest.skip(f"{index + 1} GPUs are needed")
        self.name, self.launches = f"cuda:{index}", 0
        self.reads: Counter[str] = Counter()

    def __enter__(self) -> "CudaDevice":
        torch.ones(1, device=self.name)  # a card's first use waits
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = self._note
        torch.cuda.set_sync_debug_mode("warn")
        return self

    def __exit__(self, *exception: object) -> None:
        torch.cuda.set_sync_debug_mode("default")
        self._caught.__exit__(*exception)

    def _note(self, message: Warning | str, category: type, file: str, line: int, *_: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            self.reads[f"{file}:{line}"] += 1
