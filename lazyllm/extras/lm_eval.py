"""LazyLLM in the Language Model Evaluation Harness (EleutherAI's `lm-eval`), as its model `lazyllm`.

`python -m lazyllm.extras.lm_eval` is `lm_eval` with that model; in a program, importing this module registers it.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
from tqdm import tqdm

import lazyllm

try:
    from lm_eval.api.instance import Instance
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
except ModuleNotFoundError as error:
    if __name__ != "__main__":
        raise
    print(f'lazyllm: {error}: pip install "lm-eval>=0.4.13"', file=sys.stderr)
    sys.exit(2)

# A request for a log-likelihood: prompt and continuation as text, and the ids of each.
_Request = tuple[tuple[str, str] | None, list[int], list[int]]


@register_model("lazyllm")
class LazyLM(HFLM):
    """The harness's `hf` model, enabled for LazyLLM.

    Args:
        pretrained: as `hf` takes it, and with it all other arguments.
        schedule: as `lazyllm.enable` takes it. On the command line, where a comma begins the next argument, separate
            stages by a space: `"schedule=23%:0.6 50%:0.6"`.
        ranking: `plus`, for `lazyllm.plus()`; settings of `lazyllm.AttentionRanking`, such as `{"queries": 8}`; or a
            `lazyllm.Ranking`. By default the paper's Eq. 1.

    Raises:
        LazyLLMError: LazyLLM does not support the model, the schedule or the ranking.
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
        self._ranking: Any = lazyllm.plus() if ranking == "plus" else ranking
        self._schedule = schedule
        self._schedule = self._enabled().schedule  # refuses now, not after hours, what is not supported

    def _enabled(self) -> lazyllm.Session:
        return lazyllm.enable(self.model, self._schedule, ranking=self._ranking)

    def _model_generate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with self._enabled():
            return super()._model_generate(*args, **kwargs)

    def _loglikelihood_tokens(
        self, requests: Sequence[_Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation, and whether greedy generation answers so.

        A prompt that several continuations share is computed once. Too long a prompt loses its beginning, as in `hf`.
        """
        by_prompt: dict[tuple[int, ...], list[int]] = {}
        for index, (_, prompt, continuation) in enumerate(requests):
            room = self.max_length + 1 - len(continuation)
            if room < 1:
                longer = f"{len(continuation)} tokens is longer than the model's max_length, {self.max_length}"
                raise lazyllm.LazyLLMError(f"a continuation of {longer}")
            by_prompt.setdefault(tuple(prompt[-room:]), []).append(index)
        answers: dict[int, tuple[float, bool]] = {}
        dtype = self.mixed_precision_dtype
        autocast = torch.autocast(device_type=self.device.type, dtype=dtype, enabled=dtype is not None)
        is_quiet = disable_tqdm or self.rank != 0
        with self._enabled(), autocast:
            for prompt, indexes in tqdm(by_prompt.items(), disable=is_quiet, desc="Running loglikelihood requests"):
                likelihoods = lazyllm.log_likelihoods(self.model, prompt, [requests[index][2] for index in indexes])
                for index, likelihood in zip(indexes, likelihoods, strict=True):
                    answers[index] = likelihood.total, likelihood.greedy
                    if requests[index][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[index][0], answers[index])
        return [answers[index] for index in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> NoReturn:
        """Refuse the likelihood of texts without a prompt, which LazyLLM could prune."""
        task = requests[0].task_name or "a task"
        raise lazyllm.LazyLLMError(f"{task} asks for the likelihood of texts without a prompt: use --model hf")


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except lazyllm.LazyLLMError as error:
        print(f"lazyllm: {error}", file=sys.stderr)
        sys.exit(2)
