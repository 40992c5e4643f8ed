"""The pretend device itself: it computes as the CPU does, refuses what CUDA refuses, and counts each wait once."""

from __future__ import annotations

import threading

import families
import pytest
import torch
from pretend_device import PretendDevice, PretendTensor
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile


def ramp(device, *shape):
    size = torch.Size(shape or (3, 4))
    return torch.arange(size.numel(), dtype=torch.float32, device=device.name).view(size)


MAKERS = {
    "arange": lambda **at: torch.arange(2, 9, 3, **at),
    "eye": lambda **at: torch.eye(3, **at),
    "full": lambda **at: torch.full((2, 3), 1.5, **at),
    "linspace": lambda **at: torch.linspace(0, 1, 5, **at),
    "ones": lambda **at: torch.ones(2, 3, dtype=torch.bfloat16, **at),
    "rand": lambda **at: torch.manual_seed(0) and torch.rand(3, **at),
    "tensor": lambda **at: torch.tensor([[1, 2], [3, 4]], **at),
    "tensor of nothing": lambda **at: torch.tensor([], dtype=torch.bool, **at),
    "tril_indices": lambda **at: torch.tril_indices(3, 3, **at),
    "zeros": lambda **at: torch.zeros(2, dtype=torch.bool, **at),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_tensors_are_made_there(device, make):
    made, expected = make(device=device.name), make()
    assert isinstance(made, PretendTensor)
    assert made.device == torch.device(device.name)
    assert (made.shape, made.dtype, made.stride()) == (expected.shape, expected.dtype, expected.stride())
    assert torch.equal(made.cpu(), expected)


def test_a_tensor_made_from_another_is_where_that_is(device, other):
    for place in (device, other):
        x = ramp(place)
        made = [x.new_empty(2), x.new_full((2, 2), 7), torch.zeros_like(x), x.bfloat16(), x + 1]
        made += [x.sort().values, x.split(2)[1], x.to(torch.int64), torch.arange(3, device=x.device), x[:, None]]
        assert all(isinstance(part, PretendTensor) and part.device == x.device for part in made)
        assert ramp(place).to("cpu").device.type == x.new_empty(2, device="cpu").device.type == "cpu"
    moved = ramp(device).to(other.name)
    assert moved.device.index == 1
    assert moved.tolist() == ramp(device).tolist()


def test_views_share_what_they_show(device):
    x = torch.zeros(3, 4, device=device.name)
    x[1:].narrow(1, 0, 2).copy_(torch.ones(2, 2))
    x.T[3].add_(5)
    x.select(0, 0).index_copy_(0, torch.tensor([1], device=device.name), torch.full((1,), 7.0, device=device.name))
    x.index_fill_(1, torch.tensor([2], device=device.name), -1)
    x[2, 0] = 9
    expanded = x[:1].expand(2, -1)
    x[0, 0] = 3
    assert x.tolist() == [[3, 7, -1, 5], [1, 1, -1, 5], [9, 1, -1, 5]]
    assert expanded.tolist() == [[3, 7, -1, 5]] * 2


def test_in_place_and_out(device):
    x = ramp(device)
    assert x.add_(1) is x
    out = torch.empty(0, device=device.name)
    assert torch.mul(x, 2, out=out) is out
    assert out.shape == (3, 4)
    assert x.t_().shape == (4, 3)
    assert x.is_contiguous() is False
    assert torch.equal(out.cpu(), 2 * x.cpu().T)


READS = {
    "item": (1, lambda x: x[0, 0].item()),
    "bool": (1, lambda x: bool((x > 0).any())),
    "int": (1, lambda x: int(x[0, 0])),
    "slice": (1, lambda x: x[: x[0, 1].long()]),
    "contains": (1, lambda x: 3 in x),
    "tolist": (1, lambda x: x.tolist()),
    "cpu": (1, lambda x: x.cpu()),
    "to": (1, lambda x: x.to("cpu", torch.float64)),
    "copy": (1, lambda x: torch.empty(3, 4).copy_(x)),
    "nonzero": (1, lambda x: x.nonzero()),
    "where": (1, lambda x: torch.where(x > 2)),
    "mask": (1, lambda x: x[x > 2]),
    "mask of rows": (1, lambda x: x[x[:, 0] > 2]),
    "two masks": (2, lambda x: x[x[:, 0] > 2, x[1] > 5]),
    "mask set": (1, lambda x: x.clone().__setitem__(x > 2, x[0, 0])),
    "masked_select": (1, lambda x: x.masked_select(x > 2)),
    "masked_fill": (1, lambda x: x.masked_fill(x > 2, x[0, 0])),
    "equal": (1, lambda x: torch.equal(x, x)),
    "allclose": (1, lambda x: torch.allclose(x, x)),
    "unique": (1, lambda x: x.unique()),
    "repeat_interleave": (1, lambda x: x[0].repeat_interleave(x[0].long())),
    "bincount": (1, lambda x: x.long().flatten().bincount()),
    "one_hot": (1, lambda x: functional.one_hot(x.long())),
}
NO_READS = {
    "arithmetic": lambda x: (x @ x.T).softmax(-1).sum() / 2,
    "where": lambda x: torch.where(x > 2, x, torch.tensor(0.0)),
    "mask set to a number": lambda x: x.clone().__setitem__(x > 2, 0.0),
    "rows set to a number": lambda x: x.clone().__setitem__(slice(1, None), 0),
    "masked_fill by a number": lambda x: x.masked_fill(x > 2, -torch.inf),
    "index": lambda x: x[:, x[0].long()],
    "index_select": lambda x: x.index_select(1, x[0].long()),
    "sort": lambda x: x.sort(descending=True, stable=True),
    "topk": lambda x: x.topk(2),
    "repeat_interleave": lambda x: x[0].repeat_interleave(x[0].long(), output_size=6),
    "histc": lambda x: torch.histc(x.int(), bins=4, min=0, max=11),
    "nothing": lambda x: x[:0].cpu(),
    "meta": lambda x: (x.shape, len(x), x.device, x.is_contiguous(), repr(x)),
    "to the same": lambda x: x.to(x.device),
    "attention": lambda x: functional.scaled_dot_product_attention(*[x[None, None]] * 3, is_causal=True),
}


@pytest.mark.parametrize(("count", "read"), READS.values(), ids=READS)
def test_each_wait_for_values_is_one_read(device, count, read):
    x = ramp(device)
    read(x)
    assert device.reads.total() == count
    (line,) = device.reads
    assert line == f"tests/lazyllm/test_pretend_device.py:{read.__code__.co_firstlineno}"


@pytest.mark.parametrize("work", NO_READS.values(), ids=NO_READS)
def test_no_wait_is_no_read(device, work):
    x = ramp(device)
    work(x)
    assert not device.reads
    assert not device.writes


def test_copies_to_the_device_are_writes(device):
    x = ramp(device)
    for write in (
        lambda: torch.ones(2).to(x.device),
        lambda: torch.tensor([1], device=x.device),
        lambda: x[0].copy_(torch.zeros(4)),
        lambda: x[[0, 1]],
        lambda: x.__setitem__((0, 0), 1),
        lambda: x[:, torch.tensor([0])],
    ):
        write()
        assert device.writes.total() == 1
        device.writes.clear()
    torch.tensor([], device=x.device)
    assert not device.writes
    assert not device.reads


MIXED = "Expected all tensors to be on the same device"
ON_THE_HOST = {
    "sum": lambda x: x + torch.ones(4),
    "product": lambda x: torch.ones(2, 3) @ x,
    "linear": lambda x: functional.linear(x, torch.ones(2, 4)),
    "cat": lambda x: torch.cat([x, torch.ones(1, 4)]),
    "stack": lambda x: torch.stack([torch.ones(3, 4), x]),
    "where": lambda x: torch.where(torch.ones(3, 4, dtype=torch.bool), x, x),
    "index_select": lambda x: x.index_select(0, torch.tensor([0])),
    "gather": lambda x: x.gather(0, torch.zeros(1, 4, dtype=torch.int64)),
    "indexed by the device": lambda x: torch.ones(12)[x.long()],
    "index_put": lambda x: x.__setitem__(torch.tensor([0]), torch.ones(1, 4)),
    "index_copy": lambda x: x.index_copy_(0, x[0, :1].long(), torch.ones(1, 4)),
    "embedding": lambda x: functional.embedding(torch.tensor([0]), x),
    "in place": lambda x: torch.ones(3, 4).add_(x),
    "in place of a number": lambda x: torch.tensor(1.0).add_(x[0, 0]),
    "equal": lambda x: torch.equal(x, torch.ones(3, 4)),
    "attention": lambda x: functional.scaled_dot_product_attention(*[x[None]] * 2, torch.ones(1, 3, 4)),
}


@pytest.mark.parametrize("mix", ON_THE_HOST.values(), ids=ON_THE_HOST)
def test_an_operator_takes_tensors_of_one_device(device, mix):
    with pytest.raises(RuntimeError, match=f"{MIXED}.* on cpu and pretend:0"):
        mix(ramp(device))


def test_an_operator_takes_tensors_of_one_index(device, other):
    for mix in (torch.add, torch.matmul, lambda x, y: torch.cat([x, y]), lambda x, y: x[y.long()]):
        with pytest.raises(RuntimeError, match=f"{MIXED}.* on pretend:0 and pretend:1"):
            mix(ramp(device), ramp(other))
    ramp(device).copy_(ramp(other))


def test_numbers_may_come_from_the_host(device):
    x, two = ramp(device), torch.tensor(2.0)
    assert (x * two).sum().item() == (two * x).sum().item() == 132
    assert x.masked_fill(x > 0, two).sum().item() == 22
    assert x.fill_(two).sum().item() == 24


def test_numpy_takes_nothing_from_a_device(device):
    with pytest.raises((RuntimeError, TypeError)):
        ramp(device).numpy()


def test_tied_weights_stay_tied(device):
    model = families.build("llama", tie_word_embeddings=True)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.to(device.name)
    assert model.device == torch.device(device.name)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert all(weight.device == model.device for weight in (*model.parameters(), *model.buffers()))
    model.to("cpu")
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_inference_mode_and_autocast(device):
    with torch.inference_mode(), torch.autocast(device.name.partition(":")[0], enabled=False):
        assert ramp(device)[1:].add_(1).mul(2).sum().item() == 136
    assert not torch.is_autocast_enabled("pretend")


def test_each_device_counts_its_own(device, other):
    ramp(device).tolist()
    ramp(other)[0].sum().item()
    ramp(other).tolist()
    assert (device.reads.total(), other.reads.total()) == (1, 2)
    torch.get_device_module(other.name).synchronize(other.name)
    assert (device.synchronisations, other.synchronisations) == (0, 1)


def test_all_threads_see_it(device):
    def work():
        for _ in range(50):
            ramp(device).sum().item()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.reads.total() == 200


def test_outside_of_its_with_nothing_is_on_it():
    with PretendDevice() as device:
        x = ramp(device)
        assert torch.accelerator.is_available()
        with pytest.raises(RuntimeError, match="there already"):
            PretendDevice().__enter__()
    assert not torch.accelerator.is_available() or torch.cuda.is_available()
    for use in (lambda: torch.ones(1, device=device.name), lambda: torch.tensor([1], device="pretend"), lambda: x + 1):
        with pytest.raises(RuntimeError, match="there is no device pretend:0"):
            use()


def test_what_else_uses_pytorch_is_not_disturbed():
    with PretendDevice():
        pass
    layer = torch.nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    assert layer.weight.grad.tolist() == [[1, 1], [1, 1]]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True):
        torch.ones(3)
    torch.manual_seed(0)
    assert torch.tensor([1, 2]).device.type == "cpu"
    assert not torch.ones(1).is_pinned()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", families.FAMILIES)
def test_the_unmodified_model_generates_what_it_does_on_the_cpu(device, family, dtype):
    model, ids = families.build(family, dtype=dtype), families.prompt(30)
    expected = families.generate(model, ids, 5)
    found = families.generate(model.to(device.name), ids.to(device.name), 5)
    assert found.sequences.tolist() == expected.sequences.tolist()
    if family != "mixtral":  # off the CPU transformers decodes with other products of its experts
        assert all(torch.equal(one.cpu(), other) for one, other in zip(found.logits, expected.logits, strict=True))
