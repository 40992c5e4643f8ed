"""What tests share: prompts and padding, what a generation did, what is refused, and an oracle for any family."""

import inspect
import math
from collections.abc import Callable, Iterator

import families
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

import lazyllm

STAGES = [(1, 0.6), (3, 0.5)]
PAD = 0
# Models in float64, too, take norms, and eager ones the softmax, in float32: unmodified, with SDPA and eager,
# some random models differ by 2e-5. One token less in the active set moves them by 0.2 or more.
TOLERANCE = 1e-4


def random_ids(length: int, seed: int | None = None) -> list[int]:
    return families.prompt(length, seed=length if seed is None else seed)[0].tolist()


def pad_left(texts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts of several lengths with padding at their left, and the mask that hides it, int64 (texts, longest)."""
    longest = max(map(len, texts))
    ids = torch.tensor([[PAD] * (longest - len(text)) + text for text in texts])
    return ids, torch.tensor([[0] * (longest - len(text)) + [1] * len(text) for text in texts])


def cut_answers(output: torch.Tensor, start: int, end: int | None = None) -> list[list[int]]:
    """The generated tokens of each sequence, from column `start`, up to the token `end` that ends it."""
    return [row[: row.index(end) + 1] if end in row else row for row in output[:, start:].tolist()]


def generate_alone(model: PreTrainedModel, texts: list[list[int]], **generation: object) -> list[list[int]]:
    """What the model answers to each text alone."""
    actual = []
    for text in texts:
        ids = torch.tensor([text])
        output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **generation)
        actual += cut_answers(output, len(text))
    return actual


def generate_recorded(
    model: PreTrainedModel, stages: object, ids: torch.Tensor, new_tokens: int, **how: object
) -> tuple:
    """The output of a greedy generation, and its stats with positions."""
    with lazyllm.enable(model, stages, record_positions=True, **how) as lazy:
        output = families.generate(model, ids, new_tokens)
    return output, lazy.stats


def to_lists(positions: list) -> list:
    return [[members.tolist() for members in step] for step in positions]


def assert_same_stats(actual: lazyllm.Stats, expected: lazyllm.Stats) -> None:
    """Assert that two sequences were computed alike, token by token."""
    assert actual.prompt_length == expected.prompt_length
    assert torch.equal(actual.num_computed, expected.num_computed)
    assert torch.equal(actual.active, expected.active)
    assert actual.prompt_computed == expected.prompt_computed
    assert to_lists(actual.positions) == to_lists(expected.positions)
    assert to_lists(actual.computed) == to_lists(expected.computed)
    assert_close([row.cpu() for row in actual.importance], expected.importance, 1e-5)  # sums in another order


def assert_traced(stats: lazyllm.Stats, tokens: list[int], expected: object) -> None:
    """Assert that a generation is a reference's, a `lazyllm.reference.Trace`."""
    assert tokens == expected.tokens
    assert to_lists(stats.positions) == expected.active
    assert to_lists(stats.computed) == expected.computed


def assert_close(actual: object, expected: object, tolerance: float = 1e-6) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def assert_refused(says: str, call: Callable[[], object]) -> None:
    """Assert that `call` is refused in one line that says so."""
    with pytest.raises(lazyllm.LazyLLMError, match=says) as error:
        call()
    assert "\n" not in str(error.value)


def honour_or_refuse(model: PreTrainedModel, call: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, bool]:
    """Assert that `call`, with nothing pruned, gives the unmodified model's result, or is refused in one line.

    Returns:
        the unmodified model's result, and whether LazyLLM refused.
    """
    expected = call()
    try:
        with lazyllm.enable(model, ""):
            assert_close([call()], [expected], TOLERANCE)
    except lazyllm.LazyLLMError:
        return expected, True
    return expected, False


class Replay:
    """One pass of `model` (eager) over `sequence`, in which each token sees what a generation recorded.

    Every token is computed at most once in each layer, at a known step, over a known active set: with a mask per
    layer that lets it see just that set, one pass over the final sequence must give the same logits, and its
    attention probabilities must rank the tokens as the recorded active sets say.
    """

    def __init__(self, model: PreTrainedModel, sequence: torch.Tensor, stats: lazyllm.Stats, **inputs: object) -> None:
        depth = len(stats.positions[0])
        layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == depth)
        self.dtype = model.dtype
        self.probabilities: list[torch.Tensor] = [None] * depth
        hooks = []
        for index, layer in enumerate(layers):
            visible = torch.eye(sequence.shape[1], dtype=torch.bool)
            for members, queries in zip(stats.positions, stats.computed, strict=True):
                for query in queries[index].tolist():
                    visible[query] = False
                    visible[query, members[index][members[index] <= query]] = True
            hooks += self._hooks(layer, index, visible)
        try:
            with torch.no_grad():
                self.logits = model(sequence, attention_mask=torch.ones_like(sequence), **inputs).logits[0]
        finally:
            for hook in hooks:
                hook.remove()

    def _hooks(self, layer: torch.nn.Module, index: int, visible: torch.Tensor) -> list:
        def before(module, args, kwargs):
            window = kwargs["attention_mask"]
            allowed = visible if window is None else visible & (window[0, 0] == 0)
            mask = torch.zeros(allowed.shape, dtype=self.dtype)
            mask = mask.masked_fill(~allowed, torch.finfo(self.dtype).min)
            return args, {**kwargs, "attention_mask": mask[None, None]}

        def after(module, args, output):
            self.probabilities[index] = output[1][0]

        inner = [part for part in layer.modules() if part is not layer and getattr(part, "layer_idx", None) == index]
        attention = [part for part in inner if "attention_mask" in inspect.signature(part.forward).parameters][-1]
        return [
            attention.register_forward_pre_hook(before, with_kwargs=True),
            attention.register_forward_hook(after),
        ]

    def survivors(self, layer: int, newest: int, active: torch.Tensor, keep: float) -> torch.Tensor:
        """Return the positions kept after a layer by Eq. 1."""
        importance = self.probabilities[layer][:, newest, active].mean(dim=0)
        importance[-1] = math.inf
        count = max(1, math.ceil(keep * len(active) - 1e-9))
        return active[importance.argsort(descending=True, stable=True)[:count].sort().values]


class Watch(TorchDispatchMode):
    """Record the sizes of the largest tensor, and of the largest newly made one, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.largest_made = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(result):
            elements = tensor.untyped_storage().nbytes() // tensor.element_size()
            self.largest = max(self.largest, elements)
            if tensor.untyped_storage().data_ptr() not in given:
                self.largest_made = max(self.largest_made, elements)
        return result


def _tensors(nested: object) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(nested) if isinstance(leaf, torch.Tensor))
