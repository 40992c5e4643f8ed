"""One generation on a transformers model: what happens around each decoder layer."""

import copy
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lazyllm.core.attention import WindowMask
from lazyllm.core.engine import Engine, placed
from lazyllm.core.importance import Scores
from lazyllm.core.state import Setup
from lazyllm.hf.attention_interface import CURRENT
from lazyllm.hf.batch import Batch
from lazyllm.hf.layer_arguments import LayerArguments
from lazyllm.hf.patching import by_name
from lazyllm.hf.refusals import refusal, refuse_if
from lazyllm.hf.requests import check_rotary


class Generation(Engine):
    """The engine between the decoder layers of a model; with its `rope_limits`."""

    def __init__(
        self, setup: Setup, count: int, rope_limits: tuple[int | None, int | None], chunked: int, short: bool
    ) -> None:
        super().__init__(setup, count, chunked, short)
        # Which tokens so far, padding included, always go on, bool (count, columns) on the CPU; None means none.
        self.protected: torch.Tensor | None = None
        self.state_layers: list[Any] = []  # transformers' cache of layers that carry a state from token to token
        self._rope_limits = rope_limits
        self.batch = Batch(count)
        self.rope_deltas: list[Any] | None = None  # see `RopeDeltas`
        self.layer = -1  # the one under way, or that ran last
        self._arguments = LayerArguments(count)
        self._under_way = threading.Lock()
        self._broken = False
        self._running: tuple[nn.Module, torch.device] | None = None  # the layer under way, and where its input is
        self._attended = False

    @contextmanager
    def step(self, kwargs: dict[str, Any], known: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A forward pass of the decoder; gives its arguments for the packed sequences, see `Batch.pack`."""
        refuse_if(not self._under_way.acquire(blocking=False), "pass_under_way")
        outer = CURRENT.set(self)
        try:
            refuse_if(self._broken, "broken_pass")
            seen = [sequence.seen for sequence in self.sequences]
            kwargs, new, rows = self.batch.pack(kwargs, seen, **known)
            check_rotary(seen, new, self._rope_limits)
            self.begin_step(new, rows, chunk=self.batch.columns < self.chunked)
            self._protect()
            self._arguments.begin_step(new, self.group, prunes=len(self.groups) > 1)
            self.layer, self._new, self._newest_alone = -1, sum(new), False
            self._broken = True
            yield kwargs
            ran = f"the model ran {self.layer + 1} of its {len(self.group_of)} decoder layers"
            refuse_if(self.layer + 1 != len(self.group_of), "architecture", what=ran)
            self.end_step()
            self.batch.advance()
            self._broken = False
        finally:
            CURRENT.reset(outer)
            self._running = None
            self._under_way.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Generation":
        """A generation that goes on from here by itself; what those of one session have in common stays so."""
        refuse_if(not self._under_way.acquire(blocking=False), "pass_under_way")
        try:
            own = object.__new__(type(self))
            memo |= {id(shared): shared for shared in (self.setup, self.setup.processes)}
            memo |= {id(self): own, id(self._under_way): threading.Lock()}
            memo |= {id(sequence._engine): weakref.proxy(own) for sequence in self.sequences}
            # A tensor made in inference mode could not be written to outside of it, in a later step.
            with torch.inference_mode(False):
                vars(own).update(copy.deepcopy(vars(self), memo))
            return own
        finally:
            self._under_way.release()

    def run_layer(
        self, layer: int, module: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The own `forward` of decoder layer `layer`, over the rows it computes.

        What comes in is the output of the layer before, (1, its rows, hidden), with all that hooks did to it.
        """
        hidden = args[0] if args else kwargs.get("hidden_states")
        if layer != self.layer + 1 or not isinstance(hidden, torch.Tensor) or hidden.shape[:-1] != (1, self._n_rows):
            raise refusal("architecture", what="the decoder layers do not pass on one hidden state a token")
        if layer == self.group.layers.stop:
            hidden = self.cross(hidden)
            args, kwargs = ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})
        self.layer, self._running, self._attended = layer, (module, hidden.device), False
        if self.prefilling or not self._arguments.stay(layer, self.group):
            if any(isinstance(value, torch.Tensor) for value in args[1:]):
                _, *named = by_name(forward, args, kwargs).items()
                args, kwargs = args[:1], dict(named)
            kwargs = self._arguments.for_rows(layer, self.group, kwargs)
        output = forward(*args, **kwargs)
        self._running = None
        if not self._attended and self.setup.windows[layer] != 0:
            what = f"decoder layer {layer} did not attend through transformers' attention interface and cache"
            raise refusal("architecture", what=what)
        if layer + 1 == len(self.group_of) and "position_embeddings" not in kwargs:
            # Decoders from before rotary tables (GPT-2) reshape what comes out to the shape of their input.
            self._newest_alone = True
            return self._widened(output)
        return output

    def _protect(self) -> None:
        """Tell the sequences which of their tokens always go on, as far as the pass under way brings them."""
        if self.protected is None or self.batch.columns >= self.protected.shape[1]:
            return
        for sequence, row, real in zip(self.sequences, self.protected, self.batch.coming(), strict=True):
            found = row[: len(real)][real[: len(row)]].nonzero()[:, 0]
            if sequence.seen and not sequence.revives and len(self.groups) > 1:  # what was left behind stays there
                left_behind = sequence.uncomputed(self.groups[-2]).cpu()
                found = found[(found >= sequence.seen) | ~left_behind[found]]
            sequence.protect(found)

    def offset(self) -> int | torch.Tensor:
        """By how much positions exceed indexes: of the next pass's tokens, padding included, or in a layer of its rows.

        Of rows with gaps, or of several sequences, int64 (rows,); Llama 4 asks for it in its attention.
        """
        if self._running is None:
            return self.batch.columns
        if len(self.sequences) == 1 and (self._n_rows == 1 or self.group.index == 0):
            return self.sequences[0].total - self._n_rows
        module, device = self._running
        moved_to = getattr(getattr(module, "_hf_hook", None), "execution_device", None)  # where it has a device_map
        rows = self.group.rows.to(device if moved_to is None else moved_to)
        return rows - torch.arange(rows.shape[0], device=rows.device)

    def newest(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of the decoder's output, each sequence's newest token's, (sequences, 1, hidden); 0 where it has ended."""
        hidden = hidden[:, -len(self.live) :] if self._newest_alone else self._newest_rows(hidden)
        hidden = hidden.transpose(0, 1)
        if len(self.live) == len(self.sequences):
            return hidden
        whole = hidden.new_zeros(len(self.sequences), *hidden.shape[1:])
        live = torch.tensor([sequence.index for sequence in self.live])
        return whole.index_copy(0, placed(live, hidden.device), hidden)

    def _newest_rows(self, hidden: torch.Tensor) -> torch.Tensor:
        """Of the rows, (1, rows, hidden), the newest token's of each live sequence, (1, live, hidden)."""
        if len(self.sequences) == 1:
            return hidden[:, -1:]
        if self._n_rows == len(self.live):
            return hidden
        ends = torch.tensor([rows for rows in self.group.n_rows if rows]).cumsum(0) - 1
        return hidden.index_select(1, placed(ends, hidden.device))

    def _widened(self, output: Any) -> Any:
        """A layer's output, or a tuple that begins with it, as (1, new tokens, hidden): the newest rows come last."""
        if not isinstance(output, torch.Tensor):
            return (self._widened(output[0]), *output[1:])
        rows = self._newest_rows(output)
        return torch.cat([rows[:, -1:].expand(-1, self._new - rows.shape[1], -1), rows], dim=1)

    def mask(self, **kwargs: Any) -> WindowMask | None:
        """What stands for the attention mask: nothing where causality suffices (transformers' mask interface)."""
        refuse_if(not kwargs["allow_is_causal_skip"], "not_plainly_causal")
        window = kwargs.get("local_size")
        return None if window is None or self.longest <= window else WindowMask(kwargs["mask_function"], window)

    def attention(
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
        """See `Engine.attend`; transformers' attention interface. `s_aux` are attention sinks, (heads,)."""
        refuse_if(dropout, "training")
        if self._attended:
            raise refusal("architecture", what=f"decoder layer {self.layer} attends more than once")
        own = attention_mask is not None and not isinstance(attention_mask, WindowMask)
        refuse_if(own, "architecture", what="the model builds an attention mask of its own")
        if self.prefilling:  # it is the same at every step
            tensors = {name for name, other in kwargs.items() if isinstance(other, torch.Tensor)}
            tensors -= {"position_ids", "cache_position"}
            sinks = None if getattr(module, "sinks", None) is None else (query.shape[1],)
            wrong = {
                "is not causal": is_causal is False or not getattr(module, "is_causal", True),
                "has other sinks than one logit a query head": (None if s_aux is None else s_aux.shape) != sinks,
                f"takes {', '.join(sorted(tensors))} besides queries, keys and values": tensors,
            }
            for what, holds in wrong.items():
                refuse_if(holds, "architecture", what=f"the attention of layer {self.layer} {what}")
        self._attended = True
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        scores = Scores(scaling, softcap, s_aux)
        attended = self.attend(self.layer, module, query, key, value, attention_mask, scores)
        if attended.requires_grad and not self.prefilling:
            attended.register_hook(lambda _: refuse_if(True, "gradients"))  # keys and values are written in place
        return attended
