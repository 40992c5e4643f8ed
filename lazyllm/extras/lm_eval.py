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
    """The harness's `hf`, which generates under LazyLLM.

    Args:
        pretrained: as `hf` takes it, and with it all other arguments.
        schedule: where tokens are pruned and how many stay, as `lazyllm.enable` takes it. On the command line, where a
            comma begins the next argument, stages stand apart by a space: `"schedule=23%:0.6 50%:0.6"`.
        importance: `plus`, which is `lazyllm.plus()`; parts of `lazyllm.Importance`, such as `{"queries": 8}`; or a
            ranking of one's own. By default the paper's Eq. 1.

    Raises:
        LazyLLMError: LazyLLM does not support the model, the schedule or the importance.
    """

    def __init__(
        self,
        pretrained: Any,
        *,
        schedule: str | lazyllm.PruningSchedule | Iterable[tuple[int, float]],
        importance: str | dict[str, Any] | lazyllm.Selection | None = None,
        **kwargs: Any,
    ) -> None:
        if importance == "plus":
            importance = lazyllm.plus()
        elif isinstance(importance, dict):
            importance = lazyllm.Importance(**importance)
        super().__init__(pretrained, **kwargs)
        self._asked: dict[str, Any] = {"schedule": schedule, "selection": importance}
        self._asked["schedule"] = self._enabled().schedule  # what is not supported is refused now, not after hours

    def _enabled(self) -> lazyllm.Session:
        return lazyllm.enable(self.model, **self._asked)

    def _model_generate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with self._enabled():
            return super()._model_generate(*args, **kwargs)

    def _loglikelihood_tokens(
        self, requests: Sequence[_Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation as its prompt would generate it, token by token, and if it is greedy's.

        A prompt that several continuations share is computed once. Too long a prompt loses its beginning, as in `hf`.
        """
        by_prompt: dict[tuple[int, ...], list[int]] = {}
        for place, (_, prompt, continuation) in enumerate(requests):
            if (room := self.max_length + 1 - len(continuation)) < 1:
                longer = f"{len(continuation)} tokens is longer than the model's max_length, {self.max_length}"
                raise lazyllm.LazyLLMError(f"a continuation of {longer}")
            by_prompt.setdefault(tuple(prompt[-room:]), []).append(place)
        answers: dict[int, tuple[float, bool]] = {}
        mixed = self.mixed_precision_dtype
        autocast = torch.autocast(device_type=self.device.type, dtype=mixed, enabled=mixed is not None)
        quiet = disable_tqdm or self.rank != 0
        with self._enabled(), autocast:
            for prompt, places in tqdm(by_prompt.items(), disable=quiet, desc="Running loglikelihood requests"):
                likelihoods = lazyllm.log_likelihoods(self.model, prompt, [requests[place][2] for place in places])
                for place, likelihood in zip(places, likelihoods, strict=True):
                    answers[place] = likelihood.total, likelihood.greedy
                    if requests[place][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[place][0], answers[place])
        return [answers[place] for place in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> NoReturn:
        """Refused: LazyLLM prunes a prompt, and a whole text's likelihood has none."""
        task = requests[0].task_name or "a task"
        raise lazyllm.LazyLLMError(f"{task} asks for the likelihood of whole texts, without a prompt: take --model hf")


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except lazyllm.LazyLLMError as error:  # in one line
        print(f"lazyllm: {error}", file=sys.stderr)
        sys.exit(2)
