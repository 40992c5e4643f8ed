"""The second question about a document: what each method's answer to it loses, and how long it takes.

The first question is another record's, so what a method prunes for it is chosen without the second, the record's own.
All methods get the same first answer, the unmodified model's. Writes a line a record and method, and prints means; what
the file holds already is not measured again.
"""

import argparse
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pandas as pd
import torch
from transformers import Cache, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from lazybench.calibration.setup import in_turns
from lazybench.cli.settings import compose_jobs, search_path
from lazybench.cli.settings import read as read_settings
from lazybench.config import RunConfig
from lazybench.data import Record, choose, load_facts
from lazybench.errors import LazyBenchError
from lazybench.methods import Method, build_method
from lazybench.methods.base import answer
from lazybench.model.decoding import Decoder, decoder_for, read, synchronize
from lazybench.model.device import dtype_of
from lazybench.model.environment import describe
from lazybench.model.loading import load_model
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run import scoring
from lazybench.run.divergence import divergence, expected
from lazybench.run.sources import Sources
from lazybench.store.run_folder import digest
from lazyllm import LazyLLMError

NO_ANSWER = "\N{REPLACEMENT CHARACTER}"  # stands in a chat for the first answer, whose tokens are known


@dataclass
class SecondTurn(Decoder):
    """Decodes the second answer: the prompt, the first answer and the second question go before it.

    Attributes:
        before: token ids of the first answer, one a step, and of the second question, all in one, each (1, tokens).
        ttft_s: wall time from the second question to the second answer's first token, in seconds.
    """

    before: tuple[torch.Tensor, ...] = ()
    ttft_s: float = 0.0

    @torch.no_grad()
    def __call__(self, ids: torch.Tensor, **own: object) -> list[int]:
        if own:
            raise LazyBenchError(
                f"the method gives decode its own {' and '.join(own)}, with which no second turn goes on: leave it out "
                "of --methods"
            )
        *earlier, question = (ids, *self.before)
        cache = None
        for piece in earlier:
            cache = self._pass(piece, cache).past_key_values
        start, found, logits, piece = time.perf_counter(), [], [], question
        while len(found) < self.max_new_tokens and not (found and found[-1] in self.stop_ids):
            output = self._pass(piece, cache)
            cache = output.past_key_values
            logits.append(output.logits[:, -1].float().cpu())
            found.append(int(logits[-1].argmax()) if self.forced is None else self.forced[len(found)])
            if len(found) == 1:
                synchronize(self.model.device)
                self.ttft_s = time.perf_counter() - start
            piece = torch.tensor([[found[-1]]])
        self.logits, self.answer = torch.cat(logits), found
        return list(found)

    def _pass(self, ids: torch.Tensor, cache: Cache | None) -> CausalLMOutputWithPast:
        return self.model(ids.to(self.model.device), past_key_values=cache, use_cache=True, logits_to_keep=1)


def arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], epilog="other words are settings of run")
    parser.add_argument("--methods", nargs="+", required=True, help="names of method configs")
    parser.add_argument("--config-dir", type=Path, action="append", default=[], help="folder with more of them")
    parser.add_argument("--records", type=int, help="records, the datasets in turn (all)")
    parser.add_argument("--output", type=Path, required=True, help="CSV to write")
    return parser.parse_known_args()


def main() -> None:
    asked, words = arguments()
    words, configs = [search_path(asked.config_dir), *words], {}
    for name in asked.methods:
        (composed,), _ = compose_jobs("run", [*words, f"method={name}"], multirun=False)
        configs[name] = config = read_settings(composed, composed.hydra)
    methods = {name: build_method(of.method) for name, of in configs.items()}
    questions = ask(config)
    model = load_model(config.model)
    for method in methods.values():
        method.prepare(model)
    measured = pd.read_csv(asked.output) if asked.output.exists() else pd.DataFrame()
    known = set(measured[["settings", "dataset", "_id"]].itertuples(index=False, name=None)) if len(measured) else set()
    here = describe(config.model)
    under = {"limit": config.model.limit, "dtype": dtype_of(config.model)}
    for prompt, question in questions[: asked.records]:
        missing = {}
        for name, method in methods.items():
            settings = digest(asdict(method) | under)
            if (settings, *prompt.record.key) not in known:
                missing[name] = method, settings
        if missing:
            found = measure(model, missing, prompt, question)
            found = pd.DataFrame(found).assign(commit=here["commit"], device=here["device"])
            measured = pd.concat([measured, found], ignore_index=True)
            measured.to_csv(asked.output, index=False, float_format="%.6g", lineterminator="\n")
    means = measured.groupby(["method", "settings"], sort=False)[["kl", "score", "ttft_s", "prompt_computed"]].mean()
    print(means.droplevel("settings").to_string(float_format="%.4f"))


def ask(config: RunConfig) -> list[tuple[Prompt, torch.Tensor]]:
    """For each record the prompt of the first question, and the ids of the second with what a chat puts around it."""
    facts, sources = load_facts(config.data.datasets), Sources()
    tokenizer = sources.tokenizer(config.model)
    names = choose(config.task, config.data, facts).datasets
    datasets = [sources.records(name, config.data, config.model) for name in names]
    others = {record.key: of[place - 1] for of in datasets for place, record in enumerate(of)}
    found = []
    for record in in_turns(datasets):
        builder = PromptBuilder(tokenizer, config.model, facts[record.dataset])
        if others[record.key] is record or "{context}" not in builder.facts.prompt or not record.input:
            raise LazyBenchError(f"{record.dataset}: a second question needs two records, each with an input")
        first = builder.build(replace(record, input=others[record.key].input))
        found.append((replace(first, record=record), follow_up(builder, record)))
    return found


def follow_up(builder: PromptBuilder, record: Record) -> torch.Tensor:
    """Ids of a record's question as the next message: what stands behind the context in its dataset's prompt."""
    text = builder.facts.prompt.partition("{context}")[2].format(input=record.input).strip()
    if builder.facts.chat and builder.model.chat == "template":
        said = [("user", "-"), ("assistant", NO_ANSWER), ("user", text)]
        chat = builder.tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in said], tokenize=False, add_generation_prompt=True
        )
        text = chat.partition(NO_ANSWER)[2]
    else:
        text = f"\n\n{text}"
    return torch.tensor([builder.tokenizer(text, add_special_tokens=False).input_ids])


def measure(
    model: PreTrainedModel, methods: dict[str, tuple[Method, str]], prompt: Prompt, question: torch.Tensor
) -> list[dict[str, object]]:
    """The second answer of each method, which comes with its settings: a row a seed."""
    decode = decoder_for(model, prompt)
    first = decode(prompt.ids)
    said = first[:-1] if first[-1] in decode.stop_ids else first  # the chat's own words end the message
    before = (*(torch.tensor([[token]]) for token in said), question)
    asked = SecondTurn(model, decode.max_new_tokens, decode.stop_ids, before=before)
    unmodified = expected(prompt, asked)
    facts, record, rows = prompt.builder.facts, prompt.record, []
    for name, (method, described) in methods.items():
        for seed in range(method.repeats):
            output = answer(method, prompt, asked, seed)
            kls, _ = divergence(method, prompt, asked, unmodified, seed)
            rows.append(
                {
                    "method": name,
                    "settings": described,
                    "dataset": record.dataset,
                    "_id": record.id,
                    "seed": seed,
                    "tokens": prompt.ids.shape[1],
                    "first_answer_tokens": len(said),
                    "question_tokens": question.shape[1],
                    "kl": float(kls.mean()),
                    "score": scoring.score(facts, read(output.tokens, prompt), record.answers, record.all_classes),
                    "ttft_s": asked.ttft_s,
                    "prompt_computed": output.prompt_computed,
                }
            )
    return rows


if __name__ == "__main__":
    try:
        main()
    except (LazyBenchError, LazyLLMError) as error:
        print(f"second_turn.py: {error}", file=sys.stderr)
        sys.exit(2)
