"""A device that is not the CPU, on a machine that has none: for tests of what code does on an accelerator.

PyTorch lets Python register one more kind of device. Here its tensors are shells around CPU tensors and each operator
runs on those, under CUDA's rules: no operator mixes devices, and the host waits wherever it needs a value. Each
wait is counted by the line that causes it.

    with PretendDevice() as device:
        model.to(device.name)
        model.generate(ids.to(device.name))
        print(device.reads)

Operators compute what they compute on the CPU, to the bit, fused attention too. Gradients, streams and memory are left
out. What PyTorch once registered stays, but nothing is on a device outside its `with`.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

KIND = "pretend"
_CPU = torch.device("cpu")

# Operators that need values for their result or for its shape.
_VALUES = {"_local_scalar_dense", "allclose", "bincount", "equal", "masked_select", "nonzero"}
_VALUES |= {"_unique", "_unique2", "unique_consecutive", "unique_dim", "unique_dim_consecutive"}
# Operators that read the number in a tensor without dimensions, and which argument that is.
_NUMBERS = {"masked_fill": 2, "masked_fill_": 2, "index_fill": 3, "index_fill_": 3}
_COPIES = {"copy_", "_to_copy"}
_READ_INDEXED = {"index", "_unsafe_index"}
_WRITE_INDEXED = {"index_put", "index_put_", "_unsafe_index_put", "_index_put_impl_"}


class PretendDevice:
    """A pretend device, open inside its `with`; several indexes may be open at once.

    Attributes:
        name: what `torch.device`, `.to` and `device=` take.
        reads: number of times the host waited for the device, by the causing line outside PyTorch, `file:line`.
        launches: how many operators computed something there: not views, nor memory that is only set aside.
        opened: the open ones, by index.
    """

    opened: ClassVar["dict[int, PretendDevice]"] = {}

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.name = f"{KIND}:{index}"
        self.reads: Counter[str] = Counter()
        self.launches = 0

    def __enter__(self) -> "PretendDevice":
        if self.index in self.opened:
            raise RuntimeError(f"{self.name} is open already")
        _register()
        self.opened[self.index] = self
        return self

    def __exit__(self, *exception: object) -> None:
        del self.opened[self.index]

    @classmethod
    def at(cls, index: int | None) -> "PretendDevice":
        """The device of an index; None means the first."""
        if (index or 0) not in cls.opened:
            raise RuntimeError(f"there is no device {KIND}:{index or 0}: its `with` has ended, or was never entered")
        return cls.opened[index or 0]

    def note_reads(self, times: int) -> None:
        """Count waits for the line that is running."""
        if times:
            self.reads[_line()] += times


class PretendTensor(torch.Tensor):
    """A tensor on a pretend device: the shell of the CPU tensor `host`, of the same shape and strides."""

    host: torch.Tensor
    index: int

    @staticmethod
    def __new__(cls, host: torch.Tensor, index: int = 0, requires_grad: bool = False) -> "PretendTensor":
        # accelerate makes a new parameter, of its class, from a tensor that is there already, or on no device.
        if isinstance(host, PretendTensor):
            return host
        if host.is_meta:
            return torch.nn.Parameter(host, requires_grad)
        shell = torch.Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=torch.device(KIND, index),
        )
        shell.host, shell.index = host, index
        return shell

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(operator, *args, **(kwargs or {}))

    def tolist(self) -> Any:
        return self.cpu().tolist()  # PyTorch's own refuses subclasses

    # With these two `module.to` puts shells into the parameters that are there, and tied ones stay tied.
    def __tensor_flatten__(self) -> tuple[list[str], int]:
        return ["host"], self.index

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, torch.Tensor], index: int, *shape: Any) -> "PretendTensor":
        return PretendTensor(parts["host"], index)

    def __setitem__(self, index: Any, value: Any) -> None:
        # A number is put on a device only where it goes into one element: PyTorch does this only for CUDA.
        super().__setitem__(index, value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=self.dtype))


def _run(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that takes or makes tensors of a pretend device."""
    name = operator.overloadpacket.__name__
    if name == "_has_compatible_shallow_copy_type":
        return isinstance(args[0], PretendTensor) == isinstance(args[1], PretendTensor)
    given = _tensors((args, kwargs))
    shells = {id(tensor.host): tensor for tensor in given if isinstance(tensor, PretendTensor)}
    hosted = [tensor for tensor in given if not isinstance(tensor, PretendTensor)]
    source = PretendDevice.at(next(iter(shells.values())).index) if shells else None
    target = _target(name, args, kwargs, source)
    if name not in _COPIES:
        _refuse_mixed(operator, name, args, shells, hosted)
    if source is not None:
        source.note_reads(_reads(name, args, kwargs, target))

    def put_in(value: Any) -> Any:
        if target is None or not isinstance(value, torch.Tensor):
            return value
        shell = shells.get(id(value))  # an operator in place returns what it was given
        if shell is None:
            return PretendTensor(value, target.index)
        if (shell.shape, shell.stride()) != (value.shape, value.stride()):
            shell.data = PretendTensor(value, target.index)
        return shell

    computed = _computed(operator, name, *_mapped(_taken_out, (args, kwargs)))
    if target is not None and _launches(operator, name, given, computed):
        target.launches += 1
    return _mapped(put_in, computed)


def _launches(operator: Any, name: str, given: list[torch.Tensor], computed: Any) -> bool:
    """Whether an operator computes: it writes to what it is given, or makes tensors that share no memory with that."""
    storages = {getattr(tensor, "host", tensor).untyped_storage().data_ptr() for tensor in given}
    made = [tensor.untyped_storage().data_ptr() for tensor in _tensors(computed)]
    return operator._schema.is_mutable or (
        not storages.issuperset(made) and not name.startswith(("empty", "new_empty"))
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    _mapped(lambda part: tensors.append(part) if isinstance(part, torch.Tensor) else None, value)
    return tensors


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `function` of each thing in it; PyTorch's own `tree_map` takes twice as long."""
    if isinstance(value, list | tuple):
        return type(value)([_mapped(function, part) for part in value])
    if isinstance(value, dict):
        return {key: _mapped(function, part) for key, part in value.items()}
    return function(value)


def _taken_out(value: Any) -> Any:
    if isinstance(value, PretendTensor):
        return value.host
    return _CPU if isinstance(value, torch.device) and value.type == KIND else value


def _computed(operator: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    if name == "histc" and not args[0].is_floating_point():  # CUDA's takes whole numbers
        return operator(args[0].float(), *args[1:], **kwargs).to(args[0].dtype)
    return operator(*args, **kwargs)


def _target(name: str, args: Any, kwargs: dict[str, Any], source: PretendDevice | None) -> PretendDevice | None:
    """The device of an operator's result; None is the CPU."""
    device = kwargs.get("device")
    if device is not None:
        return PretendDevice.at(device.index) if device.type == KIND else None
    if name == "copy_":
        return PretendDevice.at(args[0].index) if isinstance(args[0], PretendTensor) else None
    return source


def _refuse_mixed(operator: Any, name: str, args: Any, shells: dict[int, PretendTensor], hosted: list[Any]) -> None:
    """Raise as CUDA does where tensors are on several devices, which it allows for numbers and for indices."""
    places = {f"{KIND}:{shell.index}" for shell in shells.values()}
    for tensor in hosted:
        number = tensor.ndim == 0 and not (operator._schema.is_mutable and tensor is args[0])
        if name in _READ_INDEXED | _WRITE_INDEXED:
            allowed = number or any(tensor is index for index in args[1])
        else:
            allowed = number and (torch.Tag.pointwise in operator.tags or name in {*_NUMBERS, "fill_"})
        if not allowed:
            places.add(str(tensor.device))
    if len(places) > 1:
        listed = " and ".join(sorted(places))
        raise RuntimeError(f"Expected all tensors to be on the same device, but {operator} was given some on {listed}")


def _reads(name: str, args: Any, kwargs: dict[str, Any], target: PretendDevice | None) -> int:
    """How often the host waits for values in an operator."""
    if name in _COPIES:
        return target is None and args[0].numel() > 0
    if name in _VALUES:
        return 1
    if name in _NUMBERS:
        return isinstance(args[_NUMBERS[name]], PretendTensor)
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name in _READ_INDEXED or (name in _WRITE_INDEXED and not _fills(name, args)):
        return sum(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return 0


def _fills(name: str, args: Any) -> bool:
    """Return whether an operator fills masked positions with a number of the host, which needs no wait."""
    if name not in _WRITE_INDEXED or isinstance(args[2], PretendTensor) or args[2].numel() != 1:
        return False
    indices = [index for index in args[1] if index is not None]
    return len(indices) == 1 and indices[0].dtype == torch.bool and isinstance(indices[0], PretendTensor)


def _line() -> str:
    frame, torchs = sys._getframe(2), str(Path(torch.__file__).parent)
    while frame.f_code.co_filename == __file__ or frame.f_code.co_filename.startswith(torchs):
        frame = frame.f_back
    return f"{'/'.join(Path(frame.f_code.co_filename).parts[-3:])}:{frame.f_lineno}"


class _Module:
    """`torch.pretend`, which PyTorch asks about the devices."""

    def is_available(self) -> bool:
        return bool(PretendDevice.opened)

    is_initialized = is_available

    def device_count(self) -> int:
        return len(PretendDevice.opened)

    def current_device(self) -> int:
        return 0

    def synchronize(self, device: Any = None) -> None:
        """Operators are done when they return."""

    def manual_seed_all(self, seed: int) -> None:
        """Random numbers are the CPU's."""

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return bool(PretendDevice.opened)

    def has_primary_context(self, index: int) -> bool:
        return True

    def is_built(self) -> bool:
        return True


class _Guard(torch._C._acc.DeviceGuard):
    def type_(self) -> Any:
        return torch._C._autograd.DeviceType.PrivateUse1


@cache
def _register() -> tuple[torch.library.Library, ...]:
    """Register the kind of device with PyTorch, once per process; return the objects to keep alive."""
    _setup_privateuseone_for_python_backend(KIND, _Module(), _Hooks(), _Guard())
    anything, known = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    # Tensors bring their operators to `_run` themselves; this is for those that make one from none.
    anything.fallback(_run, "PrivateUse1")
    # `torch.tensor` copies where the dispatch of tensors is off, and no fallback is found.
    known.impl("copy_", lambda *args: _run(torch.ops.aten.copy_.default, *args), "PrivateUse1")
    # Otherwise it would be decomposed before any tensor is dispatched, and rounded differently than on the CPU.
    attention = torch.ops.aten.scaled_dot_product_attention.default
    known.impl("scaled_dot_product_attention", lambda *args, **kw: _run(attention, *args, **kw), "PrivateUse1")
    return anything, known
