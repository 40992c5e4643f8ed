"""What LazyLLM takes of `generate` and of a forward pass: ways to generate, inputs, and the outputs asked for."""

import operator
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig

from lazyllm.core.ranking import Selection
from lazyllm.core.schedule import PruningSchedule, nearest, rankable
from lazyllm.hf.refusals import refusal, refuse_if

_BEAMS = ("num_beams", "force_words_ids", "constraints")
_ASSISTED = ("assistant_model", "assistant_early_exit", "prompt_lookup_num_tokens", "use_mtp")
_PER_TOKEN = ("output_attentions", "output_hidden_states", "output_router_logits")
# What a decoder may be given a tensor for: it uses these up before its first layer, or LayerArguments knows them.
_KNOWN = {"input_ids", "inputs_embeds", "attention_mask", "position_ids", "token_type_ids", "cache_position"}
# What Gemma 4 adds to each token in each layer; features of images for the first layers, and which tokens they are for.
_KNOWN |= {"per_layer_inputs", "deepstack_visual_embeds", "visual_pos_masks"}


def setting(name: str, given: dict[str, Any], defaults: Any = None) -> Any:
    """What a call of `generate` is to go by: its argument, or that of its configuration, or the model's own."""
    config = getattr(given.get("generation_config"), name, None)
    return given[name] if name in given else getattr(defaults, name, None) if config is None else config


def check_ways(given: dict[str, Any], defaults: GenerationConfig) -> tuple[int, bool]:
    """Refuse a call of `generate` that branches, rolls back or replaces the cache, before it changes the model for it.

    `given` are the call's arguments, and `defaults` the model's own settings. Gives how many tokens of the prompts,
    padding included, come in chunks, and whether a second generation guides it.
    """
    for name in _BEAMS:
        refuse_if(setting(name, given, defaults) not in (None, 1), "beams", name=name)
    for name in _ASSISTED:
        refuse_if(setting(name, given, defaults), "assisted", name=name)
    cache = setting("cache_implementation", given, defaults)
    # Those of the other names come to the same.
    refuse_if(cache not in (None, "dynamic", "hybrid"), "cache_implementation", cache=cache)
    prompts = [given.get(name) for name in ("attention_mask", "inputs", "input_ids", "inputs_embeds")]
    widths = [tensor.shape[1] for tensor in prompts if isinstance(tensor, torch.Tensor)]
    chunked = 0 if setting("prefill_chunk_size", given, defaults) is None else max(widths, default=0)
    return chunked, setting("guidance_scale", given, defaults) not in (None, 1)


def read_schedule(given: Any, windows: list[int | None], selection: Selection) -> PruningSchedule:
    """A schedule in any form for layers that see so many positions, None all; refused if it or the ranking is not."""
    full = rankable(windows)
    if isinstance(given, str):
        given = PruningSchedule.parse(given, len(windows), full)
    schedule = given if isinstance(given, PruningSchedule) else PruningSchedule(given)
    schedule.check(len(windows))
    for layer, _ in schedule.pruning:
        instead = f"put the stage after {nearest(full, layer)}" if full else "nor any other of this model"
        refuse_if(windows[layer] == 0, "no_ranking", layer=layer, instead=instead)
    several = selection.single_stage and len(schedule.stages) > 1
    refuse_if(several, "single_stage", name=type(selection).__name__, schedule=schedule.spec)
    return schedule


def read_protected(given: Any, ids: Any, mask: Any = None) -> torch.Tensor | None:
    """Which tokens of the prompts `ids`, (sequences, tokens), always go on, bool (sequences, tokens) on the CPU.

    `given` is such a mask, of one prompt also (tokens,), or spans of it, pairs of a first token and the one behind the
    last, or a function that gives either for the ids of a prompt, (tokens,); None means none. Each span holds at least
    one token that the attention mask `mask` shows, if that has the shape of `ids`; it may end after the prompt.
    """
    if given is None:
        return None
    refuse_if(not isinstance(ids, torch.Tensor) or ids.ndim != 2, "protect_ids")
    shown = torch.ones(ids.shape, dtype=torch.bool, device="cpu")
    if isinstance(mask, torch.Tensor) and mask.shape == ids.shape:
        shown = mask.bool().cpu()
    if callable(given):
        each = [(given(row), row[None], own[None]) for row, own in zip(ids, shown, strict=True)]
        return torch.cat([read_protected([] if own is None else own, *prompt) for own, *prompt in each])
    protected = given
    if not isinstance(given, torch.Tensor):
        protected = torch.zeros(ids.shape[1], dtype=torch.bool, device="cpu")
        try:
            spans = [(_index(start), _index(end)) for start, end in given]
        except (TypeError, ValueError):  # not pairs of integers
            raise refusal("protect", shape=tuple(ids.shape)) from None
        for start, end in spans:
            is_within = 0 <= start < end and shown[0, start:end].any()
            first, last = int((~shown[0]).sum()), ids.shape[1] - 1
            refuse_if(not is_within, "protect_span", span=(start, end), first=first, last=last)
            protected[start:end] = True
    protected = protected[None] if protected.ndim == 1 else protected
    refuse_if(protected.shape != ids.shape or protected.dtype != torch.bool, "protect", shape=tuple(ids.shape))
    return protected.cpu()


def _index(bound: Any) -> int:
    if isinstance(bound, bool):
        raise TypeError
    return operator.index(bound)


def given_tokens(kwargs: dict[str, Any]) -> Any:
    """A forward pass's input: its embeddings, or else its ids."""
    embedded = kwargs.get("inputs_embeds")
    return kwargs.get("input_ids") if embedded is None else embedded


def size(kwargs: dict[str, Any]) -> tuple[int, int]:
    """Number of sequences in a forward pass's input, and its tokens for each, padding included."""
    tokens = given_tokens(kwargs)
    refuse_if(not isinstance(tokens, torch.Tensor) or tokens.ndim < 2, "no_input")
    refuse_if(0 in tokens.shape[:2], "no_token")
    return tokens.shape[0], tokens.shape[1]


def check_logits(kwargs: dict[str, Any], every_token: bool) -> None:
    """Refuse a pass of the whole model that asks for a loss, or for logits that LazyLLM does not compute.

    With `every_token`, a pass that asks for the logits of all tokens is accepted and gets the newest token's alone.
    """
    wanted, new = kwargs.get("logits_to_keep", 0), size(kwargs)[1]
    newest = isinstance(wanted, int) and (wanted == 1 or (wanted >= 0 and new == 1) or (wanted == 0 and every_token))
    refuse_if(kwargs.get("labels") is not None, "loss")
    refuse_if(not newest, "every_logits")


def check_flags(kwargs: dict[str, Any], config: PreTrainedConfig) -> None:
    """Raise `LazyLLMError` if a call or a config asks for something of every token in every layer."""
    asked = [name for name in _PER_TOKEN if kwargs.get(name) or getattr(config, name, False)]
    refuse_if(asked, "every_layer", asked=", ".join(asked))


def check_arguments(kwargs: dict[str, Any], complete: int) -> None:
    """Raise `LazyLLMError` if a decoder's arguments leave no cache, or hold tensors that are not known.

    The outputs of the first `complete` layers are of all tokens.
    """
    refuse_if(kwargs.get("use_cache") is False, "no_cache")
    unknown = sorted(name for name, value in kwargs.items() if name not in _KNOWN and _holds_tensor(value))
    refuse_if(unknown, "decoder_tensors", unknown=", ".join(unknown))
    features = kwargs.get("deepstack_visual_embeds")
    deep = 0 if features is None else len(features)
    refuse_if(deep > complete, "deepstack", deep=deep, deep_=deep - 1)


def check_rotary(seen: list[int], new: list[int], limits: tuple[int | None, int | None]) -> None:
    """Refuse a step that rotary tables of the unmodified model do not last for, by `rope_limits`.

    `seen` and `new` are how many tokens each sequence has had, and has in the step.
    """
    switch, growth = limits
    totals = [before + count for before, count in zip(seen, new, strict=True)]
    refuse_if(growth is not None and len(totals) > 1 and max(totals) > growth, "longest_rope", growth=growth)
    if switch is not None:
        crossed = any(0 < before <= switch < total for before, total in zip(seen, totals, strict=True))
        refuse_if(crossed, "crossed_rope", switch=switch)
        refuse_if(min(totals) <= switch < max(totals), "mixed_rope", switch=switch)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, torch.Tensor) or (isinstance(value, list | tuple) and any(map(_holds_tensor, value)))
