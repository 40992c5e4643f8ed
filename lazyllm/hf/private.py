"""Private interfaces of other libraries, as in transformers 5.22 to 5.24, PEFT 0.21, torch 2.13.

No other module reads or sets an attribute of theirs that is private or undocumented.
"""

import inspect
from typing import Any

from torch import nn
from transformers import GenerationMixin

# The newest transformers that the tests run on.
TESTED = "5.24"
# The argument and output that has the cache; transformers 5.24 renamed it, and reads the old name until 5.40.
OLD_CACHE = "past_key_values"
_INPUTS = inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
CACHE = "cache" if "cache" in _INPUTS else OLD_CACHE
# The methods with which `generate` checks its mode, before it changes anything, and makes its stopping criteria.
CHECK_MODE = "_validate_generation_mode"
STOPPING_CRITERIA = "_get_stopping_criteria"
# A cache with this attribute makes `generate` stop at once; on Apple's GPUs it otherwise runs one pass too many.
STOPS_AT_ONCE = "_is_user_defined"


def attention_implementation(config: Any) -> str:
    return config._attn_implementation


def set_attention_implementation(config: Any, name: str) -> None:
    """Set the attention implementation of a config, but not of the configs in it."""
    config._attn_implementation = {"": name}


def supports_sdpa(model: Any) -> bool:
    return model._supports_sdpa


def supports_attention_interface(model: Any) -> bool:
    return getattr(model, "_supports_attention_backend", False)


def supports_dynamic_cache(model: Any) -> bool:
    return model._supports_default_dynamic_cache()


def is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or hasattr(module.forward, "_torchdynamo_orig_callable")


def device_mesh(model: nn.Module) -> Any:
    """Return the mesh of devices over which transformers split a model, or None."""
    return getattr(model, "_device_mesh", None)


def lora_variants(module: nn.Module) -> list[str]:
    return [type(variant).__name__ for variant in getattr(module, "lora_variant", {}).values()]
