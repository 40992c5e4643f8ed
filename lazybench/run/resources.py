"""Load tokenizers, records, model structures and weights, each once for all jobs that share it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lazybench.config import DataConfig, ModelConfig
from lazybench.data import Record, load_dataset_configs, load_records
from lazybench.data.hub import OutOfReach
from lazybench.errors import LazyBenchError
from lazybench.model import loading


class Resources:
    """Load everything that jobs share, and keep it for the next job."""

    def __init__(self, plan: bool = False) -> None:
        # Reasons why a run could not start here, by path or name of the unreachable model or data.
        self.missing: dict[str, str] = {}
        self._plan = plan  # return None for an unreachable tokenizer, structure or identity of weights
        self._loaded: dict[str, Any] = {}
        self._model: tuple[ModelConfig, PreTrainedModel] | None = None

    def tokenizer(self, config: ModelConfig) -> PreTrainedTokenizerBase:
        """See `loading.load_tokenizer`."""
        return self._load_once(f"tokenizer {config}", config.path, partial(loading.load_tokenizer, config))

    def skeleton(self, config: ModelConfig) -> PreTrainedModel:
        """See `loading.load_skeleton`."""
        return self._load_once(f"skeleton {config}", config.path, partial(loading.load_skeleton, config))

    def weights(self, config: ModelConfig) -> str:
        """Return `loading.Weights.identity`, with the fingerprint of a tokenizer that is not among the files."""
        load = partial(loading.locate(config).identity, config)
        weights, tokenizer = self._load_once(f"weights {config}", config.path, load), self.tokenizer(config)
        if weights is None or tokenizer is None:
            return None
        is_separate = loading.names_tokenizer(config)
        return f"{weights}+{loading.tokenizer_fingerprint(tokenizer)}" if is_separate else weights

    def model(self, config: ModelConfig) -> PreTrainedModel:
        """Load the model with its weights, and keep it until another model is requested."""
        if self._model is None or self._model[0] != config:
            self._model = None  # free it before loading the next one
            self._model = config, loading.load_model(config)
        return self._model[1]

    def records_by_dataset(
        self, datasets: Sequence[str], data: DataConfig, model: ModelConfig
    ) -> dict[str, list[Record]]:
        """Load the records of each dataset; `LazyBenchError` if there are none at all.

        In a plan, unreachable records become placeholders with prompts of the maximum length.
        """
        dataset_configs, tokenizer, records = load_dataset_configs(data.datasets), self.tokenizer(model), {}
        # Generated records are counted in the model's tokens; others are the same for every model.
        source = f"{data} {model}" if data.source == "sample" else f"{data}"
        for name in datasets:
            known, load = dataset_configs[name].records, partial(load_records, name, data, tokenizer)
            records[name] = self._load_once(f"records {name} {source}", data.name if known else None, load)
            if records[name] is None:
                count = min(known, data.limit or known)
                count = count if data.half is None else -(-count // 2)
                records[name] = [Record(f"{number}", name, "", "", (), None, model.limit) for number in range(count)]
        if not any(records.values()):
            raise LazyBenchError(f"data.half={data.half}: none of the records is in that half: raise data.limit")
        return records

    def _load_once(self, key: str, name: str | None, load: Callable[[], Any]) -> Any:
        """Return the result of `load`, which is called once for each key.

        In a plan, return None if it is out of reach, and add `name` to `missing`; with `name=None`, raise the error.
        """
        if key not in self._loaded:
            try:
                self._loaded[key] = load()
            except OutOfReach as error:
                if not self._plan or name is None:
                    raise
                self.missing.setdefault(name, str(error))
                self._loaded[key] = None
        return self._loaded[key]
