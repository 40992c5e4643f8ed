"""One generation under LazyLLM: what happens around each decoder layer, for all its sequences."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lazyllm.anatomy import runs_on
from lazyllm.attention import CURRENT, WindowMask
from lazyllm.detour import by_name
from lazyllm.errors import LazyLLMError, unsupported
from lazyllm.inputs import check_rotary
from lazyllm.last_layer import LastLayer, widened
from lazyllm.layer_inputs import LayerInputs, with_hidden
from lazyllm.packing import Known, Packing
from lazyllm.sequence import Sequence, Setup
from lazyllm.tokens import Segment


class Generation:
    """The steps from the prompts of one or several sequences to their last generated tokens.

    The rows of all sequences lie one after the other, (1, rows, hidden), in all that works token by token. Each
    sequence attends by itself.

    Attributes:
        sequences: all of them, in the order of the batch.
        packing: what of each pass's input belongs to which sequence.
        rope_deltas: by how much positions exceed those of text, as the parts of a model with images keep it.
    """

    def __init__(self, setup: Setup, count: int) -> None:
        self.setup = setup
        self.sequences = [Sequence(setup) for _ in range(count)]
        self.packing = Packing(count)
        self.rope_deltas: list[Any] | None = None
        self._live: list[Sequence] = []  # those with tokens in the pass under way
        self._segments: list[Segment] = []  # theirs of the layer that runs, or ran last
        self._inputs = LayerInputs(several=count > 1)
        self._last = len(setup.windows) - 1
        self._last_layer = LastLayer()
        self._under_way = threading.Lock()
        self._broken = False
        self._layer = -1
        self._under: tuple[nn.Module, torch.device] | None = None  # the layer under way, and where its input is
        self._attended = False
        self._rotary = True
        self._stored: list[tuple[torch.Tensor, torch.Tensor]] = []

    @contextmanager
    def step(self, kwargs: dict[str, Any], known: Known) -> Iterator[dict[str, Any]]:
        """A forward pass of the decoder; gives its arguments for the packed sequences, see `Packing.pack`."""
        if not self._under_way.acquire(blocking=False):
            raise LazyLLMError("a forward pass with this cache is under way already: each generation has its own")
        try:
            if self._broken:
                raise LazyLLMError("a forward pass with this cache broke off, so it is half-written: start anew")
            tokens = [sequence.tokens for sequence in self.sequences]
            kwargs, new = self.packing.pack(kwargs, [part.seen for part in tokens], known)
            check_rotary(tokens, new, self.setup.rope_switch, self.setup.rope_growth)
            self._live = []
            for sequence, count in zip(self.sequences, new, strict=True):
                if count:
                    sequence.begin_step(count)
                    self._live.append(sequence)
            self._inputs.begin_step([sequence.tokens for sequence in self._live])
            self._layer, self._new = -1, sum(new)
            self._prefilling = any(sequence.tokens.prefilling for sequence in self._live)
            outer = CURRENT.set(self)
            self._broken = True
            try:
                yield kwargs
            finally:
                CURRENT.reset(outer)
                self._under = None
            if self._layer != self._last:
                ran = f"{self._layer + 1} of its {self._last + 1}"
                raise LazyLLMError(f"the model ran {ran} decoder layers: this is not supported")
            for sequence in self._live:
                sequence.end_step()
            self._inputs.end_step()
            self.packing.advance()
            self._broken = False
        finally:
            self._under_way.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> Generation:
        """A generation that goes on from here by itself; what those of one `with` have in common stays so."""
        if not self._under_way.acquire(blocking=False):
            raise LazyLLMError("a forward pass with this cache is under way: copy it before or after")
        try:
            own = object.__new__(type(self))
            memo |= {id(shared): shared for shared in (self.setup, self.setup.group)}
            memo |= {id(self): own, id(self._under_way): threading.Lock()}
            # A tensor made in inference mode could not be written to outside of it, in a later step.
            with torch.inference_mode(False):
                vars(own).update(copy.deepcopy(vars(self), memo))
            return own
        finally:
            self._under_way.release()

    def offset(self) -> int | torch.Tensor:
        """By how much positions exceed indexes: of the tokens of the next pass, in a layer of the rows it computes.

        One number, or where the rows have gaps or are of several sequences one a row, int64 (rows,). Llama 4 asks for
        it in its attention, and adds the rows' indexes to get their positions. Outside the layers padding counts.
        """
        if self._under is None:
            return self.packing.columns
        parts = [(sequence.tokens, segment) for sequence, segment in zip(self._live, self._segments, strict=True)]
        if len(parts) == 1:
            ((tokens, segment),) = parts
            if self._last_layer.alone or segment.n_rows == 1:
                return tokens.total - 1
            if segment.rows is None:
                return tokens.seen
        rows = torch.cat([tokens.rows(segment) for tokens, segment in parts]).to(runs_on(*self._under))
        if self._last_layer.alone:
            rows = rows.index_select(0, self._newest.to(rows.device))
        return rows - torch.arange(rows.shape[0], device=rows.device)

    def run_layer(self, layer: int, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The own `forward` of decoder layer `layer`, over the rows it computes.

        What comes in is the output of the layer before, (1, its rows, hidden), all that hooks did to it included, and
        is what the Aux Cache keeps of a token that a stage in between leaves behind.
        """
        hidden = args[0] if args else kwargs.get("hidden_states")
        segments = [sequence.tokens.segment_of[layer] for sequence in self._live]
        before = self._segments if layer else segments
        expected = (1, sum(segment.n_rows for segment in before))
        if layer != self._layer + 1 or not isinstance(hidden, torch.Tensor) or hidden.shape[:-1] != expected:
            raise unsupported("the decoder layers do not pass one hidden state a token from each to the next")
        if segments[0] is not before[0]:
            hidden = self._cross(before, hidden)
            args, kwargs = with_hidden(hidden, args, kwargs)
        self._layer, self._segments, self._attended = layer, segments, False
        self._under = module, hidden.device
        self._rows = [segment.n_rows for segment in segments]
        if any(isinstance(value, torch.Tensor) for value in args[1:]):
            _, *named = by_name(forward, args, kwargs).items()
            args, kwargs = args[:1], dict(named)
        if self._prefilling or not self._inputs.stay(layer, segments):
            self._rotary = "position_embeddings" in kwargs
            kwargs = self._inputs.for_rows(layer, segments, kwargs)
        self._alone = layer == self._last and sum(self._rows) > len(self._live) and self._last_layer.serves(module)
        if self._alone:
            self._newest = self._newest_rows()
            output = self._last_layer.run(forward, hidden, self._newest, args, kwargs)
        else:
            output = forward(*args, **kwargs)
        self._under = None
        if not self._attended:
            raise unsupported(
                f"decoder layer {layer} did not attend through transformers' attention interface and cache"
            )
        # Decoders from before rotary tables (GPT-2) reshape what comes out to the shape of their input.
        return output if self._rotary or layer < self._last else widened(output, self._new)

    def newest(self, hidden: torch.Tensor) -> torch.Tensor:
        """The newest token's state in each sequence, (sequences, 1, hidden), from the decoder's output for its rows.

        That of a sequence that has ended is zero.
        """
        if len(self.sequences) == 1:
            return hidden[:, -1:]
        if not self._alone and sum(self._rows) > len(self._live) > 1:
            hidden = hidden[:, -sum(self._rows) :].index_select(1, self._newest_rows().to(hidden.device))
        hidden = hidden[:, -len(self._live) :].transpose(0, 1)
        if len(self._live) == len(self.sequences):
            return hidden
        places = [index for index, sequence in enumerate(self.sequences) if sequence in self._live]
        whole = hidden.new_zeros(len(self.sequences), *hidden.shape[1:])
        return whole.index_copy(0, torch.tensor(places, device=hidden.device), hidden)

    def _newest_rows(self) -> torch.Tensor | None:
        """Which of the rows are the sequences' newest tokens, int64 (sequences,); None: the last one is."""
        return None if len(self._live) == 1 else torch.tensor(self._rows).cumsum(0) - 1

    def _cross(self, segments: list[Segment], hidden: torch.Tensor) -> torch.Tensor:
        """Cross a stage with every sequence: from the rows' hidden states, (1, rows, hidden), to the next rows'."""
        if len(self._live) == 1:
            return self._live[0].cross(segments[0], hidden)
        parts = hidden.split([segment.n_rows for segment in segments], dim=1)
        crossed = zip(self._live, segments, parts, strict=True)
        return torch.cat([sequence.cross(segment, part) for sequence, segment, part in crossed], dim=1)

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the rows' keys and values, (1, kv_heads, rows, ...), of a layer.

        Returns:
            all of the layer's keys and values, (1, kv_heads, stored, ...); of several sequences what was given, which
            stands for those of each.
        """
        if len(self._live) == 1:
            return self._live[0].tokens.update(key, value, layer)
        sizes = self._sizes()
        parts = zip(self._live, key.split(sizes, dim=2), value.split(sizes, dim=2), strict=True)
        self._stored = [sequence.tokens.update(*part, layer) for sequence, *part in parts]
        self._given = key, value
        return key, value

    def _sizes(self) -> list[int]:
        """How many rows of each sequence the pass through the layer is for."""
        return [1] * len(self._live) if self._last_layer.alone else self._rows

    def mask(self, **kwargs: Any) -> WindowMask | None:
        """What stands for the attention mask: nothing where causality suffices (transformers' mask interface)."""
        if not kwargs["allow_is_causal_skip"]:
            raise LazyLLMError("the model's attention mask is not plainly causal: LazyLLM cannot prune under it")
        window = kwargs.get("local_size")
        if window is None or all(sequence.tokens.total <= window for sequence in self._live):
            return None
        return WindowMask(kwargs["mask_function"], window)

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: WindowMask | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        softcap: float | None = None,
        is_causal: bool | None = None,
        s_aux: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Attention of the rows, each over its own sequence's active tokens, (1, rows, heads, value_dim).

        Transformers' attention interface; `query` is (1, heads, rows, head_dim), `key` and `value` as `update`
        returned them; `s_aux` are attention sinks, (heads,).
        """
        self._last_layer.attend()
        if dropout:
            raise LazyLLMError("the model is in training mode, with dropout: call model.eval() before generating")
        sizes = self._sizes()
        if self._attended or query.shape[2] != sum(sizes):
            raise unsupported(f"decoder layer {self._layer} does not attend once, over its own cached keys")
        self._refuse_unsupported(module, attention_mask, is_causal, kwargs)
        if self._prefilling:
            self._check_sinks(module, s_aux, query.shape[1])
        self._attended = True
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        by = attention_mask, scaling, softcap, s_aux
        if len(self._live) == 1:
            (sequence,) = self._live
            return sequence.attend(self._layer, module, query, key, value, *by)
        if any(got.data_ptr() != gave.data_ptr() for got, gave in zip((key, value), self._given, strict=True)):
            raise unsupported(f"decoder layer {self._layer} changes its cached keys or values before it attends")
        attended = [
            sequence.attend(self._layer, module, part, *stored, *by)
            for sequence, part, stored in zip(self._live, query.split(sizes, dim=2), self._stored, strict=True)
        ]
        self._stored = []
        return torch.cat(attended, dim=1)

    def _check_sinks(self, module: nn.Module, sinks: torch.Tensor | None, heads: int) -> None:
        given = sinks is not None
        if given != (getattr(module, "sinks", None) is not None) or (given and sinks.shape != (heads,)):
            raise unsupported(f"the attention sinks of layer {self._layer} are not one logit a query head")

    def _refuse_unsupported(
        self, module: nn.Module, attention_mask: WindowMask | None, is_causal: bool | None, kwargs: dict[str, Any]
    ) -> None:
        if attention_mask is not None and not isinstance(attention_mask, WindowMask):
            raise unsupported("the model builds an attention mask of its own")
        if not self._prefilling:
            return  # the rest is the same at every step
        if is_causal is False or not getattr(module, "is_causal", True):
            raise LazyLLMError(f"the attention of layer {self._layer} is not causal: LazyLLM cannot prune it")
        tensors = {name for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
        if extra := sorted(tensors - {"position_ids", "cache_position"}):
            raise unsupported(f"the attention takes {', '.join(extra)} besides queries, keys and values")
