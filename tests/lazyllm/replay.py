"""Checks a whole LazyLLM generation on any family with one masked pass of the unmodified eager model.

Every token is computed at most once in each layer, at a known step, over a known active set. So one pass over
the final sequence, with a mask per layer that lets each token see just that set, must give the same logits;
and its attention probabilities must rank the tokens as the recorded active sets say.
"""

from __future__ import annotations

import math

import torch
from transformers import PreTrainedModel

# Models in float64, too, take norms, and eager ones the softmax, in float32: unmodified, with SDPA and eager,
# some random models differ by 2e-5. One token less in the active set moves them by 0.2 or more.
TOLERANCE = 1e-4


class Replay:
    """Run `model` (eager) over `sequence`, and what else it is given, with each layer's recorded visibility."""

    def __init__(
        self, model: PreTrainedModel, sequence: torch.Tensor, positions: list, computed: list, **inputs: object
    ) -> None:
        layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == len(positions[0]))
        self.dtype = model.dtype
        self.probabilities: list[torch.Tensor] = [None] * len(layers)
        hooks = []
        for index, layer in enumerate(layers):
            visible = _visibility(sequence.shape[1], [step[index] for step in positions], [s[index] for s in computed])
            hooks += self._mask(layer, index, visible)
        try:
            with torch.no_grad():
                self.logits = model(sequence, attention_mask=torch.ones_like(sequence), **inputs).logits[0]
        finally:
            for hook in hooks:
                hook.remove()

    def _mask(self, layer, index, visible):
        def before(module, args, kwargs):
            window = kwargs["attention_mask"]
            allowed = visible if window is None else visible & (window[0, 0] == 0)
            mask = torch.zeros(allowed.shape, dtype=self.dtype)
            mask = mask.masked_fill(~allowed, torch.finfo(self.dtype).min)
            return args, {**kwargs, "attention_mask": mask[None, None]}

        def after(module, args, output):
            self.probabilities[index] = output[1][0]

        attention = next(m for m in layer.modules() if getattr(m, "layer_idx", None) == index and m is not layer)
        return [
            attention.register_forward_pre_hook(before, with_kwargs=True),
            attention.register_forward_hook(after),
        ]

    def expected_survivors(self, layer: int, newest: int, active: torch.Tensor, keep: float) -> torch.Tensor:
        importance = self.probabilities[layer][:, newest, active].mean(dim=0)
        importance[-1] = math.inf
        count = max(1, math.ceil(keep * len(active) - 1e-9))
        return active[importance.argsort(descending=True)[:count].sort().values]


def _visibility(length: int, active: list, computed: list) -> torch.Tensor:
    visible = torch.eye(length, dtype=torch.bool)
    for members, rows in zip(active, computed, strict=True):
        for row in rows.tolist():
            visible[row] = False
            visible[row, members[members <= row]] = True
    return visible
