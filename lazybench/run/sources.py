"""What jobs are made from, each part loaded once for all jobs that share it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lazybench.config import DataConfig, ModelConfig
from lazybench.data import Record, load_facts, load_records
from lazybench.data.hub import OutOfReach
from lazybench.errors import LazyBenchError
from lazybench.model.loading import load_skeleton, load_tokenizer, locate, names_tokenizer, tokenizer_fingerprint
from lazybench.model.prompts import PromptBuilder
from lazybench.store.run_folder import digest


class Sources:
    """Tokenizers, records and model structures.

    Args:
        plan: jobs are planned and not run: a tokenizer, a structure or an identity of weights that is out of reach is
            None.

    Attributes:
        missing: for each model or data that lacks something, by path or name, why a run of it could not start here.
    """

    def __init__(self, plan: bool = False) -> None:
        self.missing: dict[str, str] = {}
        self._plan = plan
        self._loaded: dict[tuple[str, str], Any] = {}
        self._model: tuple[ModelConfig, PreTrainedModel] | None = None

    def tokenizer(self, model: ModelConfig) -> PreTrainedTokenizerBase:
        """See `loading.load_tokenizer`."""
        return self._of_model("tokenizer", model, load_tokenizer)

    def skeleton(self, model: ModelConfig) -> PreTrainedModel:
        """See `loading.load_skeleton`."""
        return self._of_model("skeleton", model, load_skeleton)

    def weights(self, model: ModelConfig) -> str:
        """See `loading.Weights.identity`; a tokenizer that is not among their files counts too."""
        return self._of_model("weights", model, self._identity)

    def model(self, model: ModelConfig, load: Callable[[ModelConfig], PreTrainedModel]) -> PreTrainedModel:
        """The model with its weights; it stays loaded until another one is asked for."""
        if self._model is None or self._model[0] != model:
            self._model = None  # before there are two
            self._model = model, load(model)
        return self._model[1]

    def records(self, dataset: str, data: DataConfig, model: ModelConfig) -> list[Record]:
        """See `data.load_records`."""
        # Generated records are counted in the model's tokens; LongBench's are the same for every model.
        own = None if data.source == "longbench" else asdict(model)

        def load() -> list[Record]:
            tokenizer = self.tokenizer(model)
            facts = load_facts(data.datasets)[dataset]
            tokens = None if tokenizer is None else PromptBuilder(tokenizer, model, facts).tokens
            try:
                return load_records(dataset, data, tokenizer, tokens)
            except OutOfReach as error:
                if not self._plan or not facts.records:
                    raise
                self.missing.setdefault(data.name, str(error))
                count = min(facts.records, data.limit or facts.records)
                count = count if data.half is None else -(-count // 2)
                # As many as are known to be there, each as long as a prompt may be.
                return [Record(f"{number}", dataset, "", "", (), None, model.limit) for number in range(count)]

        return self._once("records", {"dataset": dataset, "data": asdict(data), "model": own}, load)

    def of_each(self, datasets: Sequence[str], data: DataConfig, model: ModelConfig) -> list[list[Record]]:
        """The records of each dataset; `LazyBenchError` where there are none at all."""
        found = [self.records(name, data, model) for name in datasets]
        if not any(found):
            raise LazyBenchError(f"data.half={data.half}: none of the records is in that half: raise data.limit")
        return found

    def _identity(self, model: ModelConfig) -> str | None:
        tokenizer = self.tokenizer(model)
        if tokenizer is None:
            return None
        weights = locate(model).identity(model)
        return f"{weights}+{tokenizer_fingerprint(tokenizer)}" if names_tokenizer(model) else weights

    def _of_model(self, kind: str, model: ModelConfig, load: Callable[[ModelConfig], Any]) -> Any:
        def load_if_there() -> Any:
            try:
                return load(model)
            except OutOfReach as error:
                if not self._plan:
                    raise
                self.missing.setdefault(model.path, str(error))
                return None

        return self._once(kind, asdict(model), load_if_there)

    def _once(self, kind: str, key: dict[str, Any], load: Callable[[], Any]) -> Any:
        name = (kind, digest(key))
        if name not in self._loaded:
            self._loaded[name] = load()
        return self._loaded[name]
