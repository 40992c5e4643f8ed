"""LazyLLM in the Language Model Evaluation Harness (EleutherAI's `lm-eval`), as its model `lazyllm`.

`python -m lazyllm.extras.lm_eval` is `lm_eval` with that model; in a program, importing this module registers it.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm

import lazyllm


@register_model("lazyllm")
class LazyLM(HFLM):
    """The harness's `hf` model, enabled for LazyLLM.

    Args:
        pretrained: as `hf` takes it, like all other arguments.
        schedule: as `lazyllm.enable` takes it. On the command line, where a comma begins the next argument, separate
            stages by a space: `"schedule=23%:0.54 50%:0.54"`.
        ranking: `plus`, for `lazyllm.plus()`; settings of `lazyllm.AttentionRanking`, such as `{"queries": 8}`; or a
            `lazyllm.Ranking`. By default the paper's Eq. 1.
    """

    def __init__(
        self,
        pretrained: Any,
        *,
        schedule: str | lazyllm.PruningSchedule | Iterable[tuple[int, float]],
        ranking: str | dict[str, Any] | lazyllm.Ranking | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(pretrained, **kwargs)
        if isinstance(ranking, dict):
            ranking = lazyllm.AttentionRanking(**ranking)
        chosen: Any = lazyllm.plus() if ranking == "plus" else ranking
        self._lazy = lazyllm.enable(self.model, schedule, ranking=chosen)  # raises before the first record

    def _model_generate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with self._lazy:
            return super()._model_generate(*args, **kwargs)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether greedy generation would produce it.

        Requests are prompt and continuation as a pair of texts or None, and the ids of each. A prompt that several
        continuations share is computed once. A prompt that is too long is cut at the front, as in `hf`.
        """
        by_prompt = defaultdict(list)
        for index, (_, prompt, continuation) in enumerate(requests):
            room = self.max_length + 1 - len(continuation)
            if room < 1:
                longer = f"{len(continuation)} tokens is longer than the model's max_length, {self.max_length}"
                raise lazyllm.LazyLLMError(f"a continuation of {longer}")
            by_prompt[tuple(prompt[-room:])].append(index)
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        dtype = self.mixed_precision_dtype
        with self._lazy, torch.autocast(self.device.type, dtype, enabled=dtype is not None):
            for prompt, indexes in tqdm(by_prompt.items(), disable=disable_tqdm or self.rank != 0):
                likelihoods = lazyllm.log_likelihoods(self.model, prompt, [requests[index][2] for index in indexes])
                for index, likelihood in zip(indexes, likelihoods, strict=True):
                    answers[index] = likelihood.total, likelihood.greedy
                    if requests[index][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[index][0], answers[index])
        return answers


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except lazyllm.LazyLLMError as error:
        print(f"lazyllm: {error}", file=sys.stderr)
        sys.exit(2)
