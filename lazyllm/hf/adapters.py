"""What PEFT and quantisation put into a model: it must treat each token by itself, whichever run with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from lazyllm.hf.refusals import refuse_if

# Folders of `peft.tuners` whose modules tests prove to work token by token.
_PROVED = (
    "adalora adaption_prompt beft boft c3a deft delora fourierft frod glora gralora hira hra ia3 ln_tuning loha lokr "
    "lora miss oft osf peanut pvera randlora road shira supertuning tinylora trainable_tokens unilora vblora vera "
    "waveft"
)
ADAPTERS = frozenset(_PROVED.split())


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside PEFT's wrapper, whose `generate` calls that model's own; any other model itself."""
    inner = getattr(model, "get_base_model", None)
    return model if isinstance(model, PreTrainedModel) or inner is None else inner()


def check_parts(modules: Iterable[nn.Module]) -> None:
    """Raise `LazyLLMError` for adapters that are not proved, and for scales taken from several tokens together."""
    for part in modules:
        package, _, folder = type(part).__module__.partition("peft.tuners.")
        if folder and not package and not folder.startswith("_"):
            kinds = [type(variant).__name__ for variant in getattr(part, "lora_variant", {}).values()]
            unknown = [kind for kind in (*kinds, folder.split(".")[0]) if kind not in ADAPTERS and kind[:4] != "Dora"]
            refuse_if(unknown, "unproved_adapters", unknown=unknown[0])
        for parameter in part._parameters.values():
            # torchao keeps how activations are quantised with the weight.
            settings = getattr(parameter, "act_quant_kwargs", None)
            by_tensor = settings is not None and type(getattr(settings, "granularity", None)).__name__ == "PerTensor"
            refuse_if(by_tensor and getattr(parameter, "act_quant_scale", None) is None, "one_scale")


def check_inputs_own(model: PreTrainedModel) -> None:
    """Raise `LazyLLMError` if PEFT's prompt learning has put itself between `generate` and the model's inputs."""
    owner = getattr(model.prepare_inputs_for_generation, "__self__", model)
    refuse_if(owner is not model, "virtual_tokens", owner=type(owner).__name__)


def check_adapters(model: nn.Module) -> None:
    """Raise `LazyLLMError` if passes of PEFT's wrapper would put virtual tokens before each."""
    refuse_if(
        getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False),
        "virtual_tokens_in_passes",
        model=type(model).__name__,
    )


def through_wrapper(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`generate`, or `forward`, of PEFT's wrapper."""
    refuse_if(len(kwargs.get("adapter_names") or ()) > 1, "adapter_names")
    return method(*args, **kwargs)
