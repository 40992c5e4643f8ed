"""The engine of one generation on a transformers model, driven by its decoder layers' forward passes."""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lazyllm.core.attention import LayerInputs, WindowMask
from lazyllm.core.engine import Engine, Setup
from lazyllm.core.errors import LazyLLMError, unsupported
from lazyllm.core.importance import Scores
from lazyllm.core.kv_cache import to_device
from lazyllm.hf.arguments import TRAINING
from lazyllm.hf.attention_interface import CURRENT_ENGINE, NOT_CAUSAL
from lazyllm.hf.layer_arguments import LayerArguments
from lazyllm.hf.packing import BatchPacker


class HFEngine(Engine):
    """The engine between the decoder layers of a transformers model."""

    def __init__(
        self, setup: Setup, batch_size: int, chunked_tokens: int, is_prompt_whole: bool, rope_switch: int | None
    ) -> None:
        super().__init__(setup, batch_size, chunked_tokens, is_prompt_whole)
        self.packer = BatchPacker(batch_size)
        self.protected: Tensor | None = None  # which tokens of the prompts are, bool (batch, columns), on the CPU
        self.state_layers: list[Any] = []  # transformers' cache of layers that carry a state from token to token
        self.layer = -1  # the decoder layer that is running or ran last
        self._rope_switch = rope_switch  # see `model_support.rope_switch`
        self._layer_arguments = LayerArguments(batch_size)
        self._lock = threading.Lock()  # locked during a pass
        self._is_broken = False  # whether a pass failed
        self.is_in_layer = False  # whether a decoder layer is running
        self._has_attended = False  # whether the layer that is running, or ran last, has attended

    @contextmanager
    def step(self, arguments: dict[str, Any], known: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Run one forward pass: yield the decoder's arguments for the packed batch, and end the step when it has run.

        `known` are further arguments of `BatchPacker.pack`.
        """
        with self._exclusive():
            computed = [sequence.num_computed_tokens for sequence in self.sequences]
            packed, num_new_tokens, positions = self.packer.pack(arguments, computed, **known)
            self._check_rope(computed, num_new_tokens)
            self.begin_step(num_new_tokens, positions, is_chunk=self.packer.num_columns < self.chunked_tokens)
            self._protect()
            self._layer_arguments.begin_step(self.groups)
            self.layer, self._is_broken = -1, True
            yield packed
            if self.layer + 1 != len(self.group_of):
                raise unsupported(f"the model ran {self.layer + 1} of its {len(self.group_of)} decoder layers")
            self.end_step()
            self.packer.computed = self.packer.computed_after_pass
            self._is_broken = False

    def run_layer(self, layer: int, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a decoder layer's own `forward` over the tokens it computes; where a group begins, prune first."""
        args = args or (kwargs.pop("hidden_states", None),)  # the previous layer's output, as hooks left it
        packed = (1, self.group.num_queries)
        if layer != self.layer + 1 or not isinstance(args[0], Tensor) or args[0].shape[:-1] != packed:
            raise unsupported("the decoder layers do not pass on one hidden state per token")
        if layer == self.group.layers.stop:
            args = (self.run_stage(args[0]), *args[1:])
        self.layer, self.is_in_layer, self._has_attended = layer, True, False
        args, kwargs = self._layer_arguments.select(layer, self.group, forward, args, kwargs)
        output = forward(*args, **kwargs)
        self.is_in_layer = False
        if not self._has_attended and self.setup.windows[layer] != 0:
            raise unsupported(f"decoder layer {layer} did not attend through transformers' interface and cache")
        if layer + 1 < len(self.group_of):
            return output
        return self._newest(output, widens="position_embeddings" not in kwargs)

    def newest_hidden(self, hidden: Tensor) -> Tensor:
        """Return the decoder's output for each sequence's newest token, (batch, 1, hidden); 0 for ended sequences."""
        hidden = hidden[:, -len(self.live) :].transpose(0, 1)
        if len(self.live) == len(self.sequences):
            return hidden
        by_sequence = hidden.new_zeros(len(self.sequences), *hidden.shape[1:])
        live = torch.tensor([sequence.index for sequence in self.live])
        return by_sequence.index_copy(0, to_device(live, hidden.device), hidden)

    def mask(self, **kwargs: Any) -> WindowMask | None:
        """Return the layer's window, or None if causality suffices; transformers calls this as its mask interface."""
        if not kwargs["allow_is_causal_skip"]:
            raise LazyLLMError(NOT_CAUSAL)
        window = kwargs.get("local_size")
        return None if window is None or self.max_tokens <= window else WindowMask(kwargs["mask_function"], window)

    def attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: WindowMask | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        softcap: float | None = None,
        is_causal: bool | None = None,
        s_aux: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Attend by `Engine.attend`; transformers calls this for attention. `s_aux` are attention sinks, (heads,)."""
        if dropout:
            raise LazyLLMError(TRAINING)
        if self._has_attended:
            raise unsupported(f"decoder layer {self.layer} attends more than once")
        if attention_mask is not None and not isinstance(attention_mask, WindowMask):
            raise unsupported("the model builds an attention mask of its own")
        if self.group.is_prefill:  # later steps have the same kinds of arguments
            tensors = {name for name, argument in kwargs.items() if isinstance(argument, Tensor)}
            tensors -= {"position_ids", "cache_position"}
            sinks = None if getattr(module, "sinks", None) is None else (query.shape[1],)
            problems = {
                "is not causal": is_causal is False or not getattr(module, "is_causal", True),
                "has other sinks than one logit per query head": (None if s_aux is None else s_aux.shape) != sinks,
                f"takes {', '.join(sorted(tensors))} besides queries, keys and values": tensors,
            }
            for problem, is_there in problems.items():
                if is_there:
                    raise unsupported(f"the attention of layer {self.layer} {problem}")
        self._has_attended = True
        # With `sdpa`, some versions of transformers ignore soft caps.
        softcap = None if self.setup.kernel.name == "sdpa" else softcap
        scores = Scores(query.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux)
        return self.attend(LayerInputs(self.layer, module, query, key, value, attention_mask, scores))

    def __deepcopy__(self, memo: dict[int, Any]) -> "HFEngine":
        """Copy a generation, to continue independently; share what all generations of a session share."""
        with self._exclusive():
            own = object.__new__(type(self))
            memo |= {id(shared): shared for shared in (self.setup, self.setup.processes)}
            memo |= {id(self): own, id(self._lock): threading.Lock()}
            # A tensor made in inference mode could not be written to outside of it, in a later step.
            with torch.inference_mode(False):
                vars(own).update(copy.deepcopy(vars(self), memo))
            return own

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Make this the current engine; refuse a second pass or copy at the same time."""
        if not self._lock.acquire(blocking=False):
            raise LazyLLMError("a forward pass with this cache is still running: copy it, or use it again, after that")
        outer = CURRENT_ENGINE.set(self)
        try:
            if self._is_broken:
                raise LazyLLMError("a pass with this cache failed, so the cache is inconsistent: start a new one")
            yield
        finally:
            CURRENT_ENGINE.reset(outer)
            self.is_in_layer = False
            self._lock.release()

    def _check_rope(self, num_computed_tokens: list[int], num_new_tokens: list[int]) -> None:
        """Refuse a step in which the unmodified model would switch its rotary tables."""
        if (switch := self._rope_switch) is None:
            return
        totals = [computed + new for computed, new in zip(num_computed_tokens, num_new_tokens, strict=True)]
        if min(filter(None, [*totals, *num_computed_tokens])) <= switch < max(totals):
            changes = f"this model's rotary tables change at {switch} positions, which no generation or batch may cross"
            raise LazyLLMError(f"{changes}: use prompts and a prefill_chunk_size above {switch}, or stay below")

    def _protect(self) -> None:
        """Set the sequences' protected tokens, up to those of the current pass."""
        if self.protected is None or self.packer.num_columns >= self.protected.shape[1]:
            return
        computed = self.packer.computed_after_pass
        for sequence, row, is_real in zip(self.sequences, self.protected, computed, strict=True):
            sequence.protect(row[: len(is_real)][is_real[: len(row)]].nonzero()[:, 0])

    def _newest(self, output: Any, widens: bool) -> Any:
        """Return the newest token of each live sequence, (1, live, hidden), of a layer's output.

        `output` is (1, tokens, hidden), or a tuple that begins with it. With `widens` the result is padded in front to
        the width of the decoder's input, to which decoders without rotary tables (GPT-2) reshape it.
        """
        if not isinstance(output, Tensor):
            return (self._newest(output[0], widens), *output[1:])
        newest = output[:, -1:] if len(self.live) == 1 else output
        if newest.shape[1] > len(self.live):
            ends = torch.tensor([count for count in self.group.queries.counts if count]).cumsum(0) - 1
            newest = newest.index_select(1, to_device(ends, newest.device))
        padding = sum(self.groups[0].queries.counts) - newest.shape[1] if widens else 0
        return torch.cat([newest[:, -1:].expand(-1, padding, -1), newest], dim=1) if padding else newest
