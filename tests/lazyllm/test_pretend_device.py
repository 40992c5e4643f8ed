"""The pretend device itself: it computes as the CPU does, refuses what CUDA refuses, and counts waits and launches."""

import pytest
import torch
from torch.nn import functional

READS = {
    "slice": (1, lambda x: x[: x[0, 1].long()]),
    "nonzero": (1, lambda x: x.nonzero()),
    "two masks": (2, lambda x: x[x[:, 0] > 2, x[1] > 5]),
    "mask set to a number": (0, lambda x: x.clone().__setitem__(x > 2, 0.0)),
    "index": (0, lambda x: x[:, x[0].long()]),
    "attention": (0, lambda x: functional.scaled_dot_product_attention(*[x[None, None]] * 3, is_causal=True)),
}


def ramp(device):
    return torch.arange(12, dtype=torch.float32, device=device.name).view(3, 4)


@pytest.mark.parametrize(("count", "work"), READS.values(), ids=READS)
def test_each_wait_for_values_is_one_read(device, count, work):
    x = ramp(device)
    work(x)
    assert device.reads.total() == count
    assert set(device.reads) <= {f"tests/lazyllm/test_pretend_device.py:{work.__code__.co_firstlineno}"}


def test_launches_are_counted(device, other):
    x = ramp(device)
    for launches, work in (
        (0, lambda: x[1:].T[None]),
        (1, lambda: x + 1),
        (1, lambda: x[1:].add_(1)),
        (0, lambda: x.new_empty(3)),
        (2, lambda: x.softmax(-1).sum()),
        (1, lambda: torch.ones(2).to(x.device)),
    ):
        device.launches = 0
        work()
        assert device.launches == launches
    ramp(other).sum().item()
    assert (device.reads.total(), other.reads.total()) == (0, 1)


def test_an_operator_takes_tensors_of_one_device(device, other):
    x = ramp(device)
    for mix in (lambda: x + torch.ones(4), lambda: x.index_select(0, torch.tensor([0])), lambda: x + ramp(other)):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            mix()
    assert (x * torch.tensor(2.0)).sum().item() == 132  # numbers may come from the host
