"""Measure the second question about a document: each method's KL, score and time to the first token of its answer.

The first question is another record's, so a method prunes for it without knowing the second, the record's own. All
methods get the unmodified model's first answer. Writes a line a record and method, and prints means; lines that are in
the file are not measured again.
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

from lazybench.cli.settings import compose_jobs, search_path
from lazybench.cli.settings import read as read_settings
from lazybench.config import RunConfig
from lazybench.data import Record, choose, load_facts
from lazybench.errors import LazyBenchError
from lazybench.identity import digest
from lazybench.matching.match import interleave
from lazybench.methods import Method, build_method
from lazybench.methods.base import answer
from lazybench.model.decoding import Decoder, decoder_for, synchronize, to_text
from lazybench.model.environment import describe
from lazybench.model.loading import load_model
from lazybench.model.prompts import Prompt, PromptBuilder
from lazybench.run import scoring
from lazybench.run.divergence import divergence, unmodified_answer
from lazybench.run.resources import Resources
from lazyllm import LazyLLMError

NO_ANSWER = "\N{REPLACEMENT CHARACTER}"  # stands in a chat for the first answer, whose tokens are known


@dataclass
class SecondTurn(Decoder):
    """Decode the second answer, after the prompt, the first answer and the second question.

    Attributes:
        turns: token ids `(1, tokens)` of each forward pass after the prompt: a token of the first answer each, then the
            second question.
        ttft_s: wall time from the second question to the second answer's first token, in seconds.
    """

    turns: tuple[torch.Tensor, ...] = ()
    ttft_s: float = 0.0

    @torch.no_grad()
    def __call__(self, ids: torch.Tensor, **own: object) -> list[int]:
        if own:
            raise LazyBenchError(
                f"the method gives decode its own {' and '.join(own)}, with which no second turn goes on: leave it out "
                "of --methods"
            )
        *earlier, question = (ids, *self.turns)
        cache = None
        for piece in earlier:
            cache = self._forward(piece, cache).past_key_values
        synchronize(self.model.device)
        start, tokens, logits, piece = time.perf_counter(), [], [], question
        while len(tokens) < self.max_new_tokens and not (tokens and tokens[-1] in self.stop_ids):
            output = self._forward(piece, cache)
            cache = output.past_key_values
            logits.append(output.logits[:, -1].float().cpu())
            tokens.append(int(logits[-1].argmax()) if self.forced is None else self.forced[len(tokens)])
            if len(tokens) == 1:
                synchronize(self.model.device)
                self.ttft_s = time.perf_counter() - start
            piece = torch.tensor([[tokens[-1]]])
        self.logits, self.answer = torch.cat(logits), tokens
        return list(tokens)

    def _forward(self, ids: torch.Tensor, cache: Cache | None) -> CausalLMOutputWithPast:
        return self.model(ids.to(self.model.device), past_key_values=cache, use_cache=True, logits_to_keep=1)


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """Return this script's own flags, and settings of `run`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], epilog="other words are settings of run")
    parser.add_argument("--methods", nargs="+", required=True, help="names of method configs")
    parser.add_argument("--config-dir", type=Path, action="append", default=[], help="folder with more of them")
    parser.add_argument("--records", type=int, help="records, the datasets in turn (all)")
    parser.add_argument("--output", type=Path, required=True, help="CSV to write")
    return parser.parse_known_args()


def main() -> None:
    options, words = parse_arguments()
    words, configs = [*search_path(options.config_dir), *words], {}
    for name in options.methods:
        (composed,) = compose_jobs("run", [*words, f"method={name}"])
        configs[name] = config = read_settings(composed, composed.hydra)
    methods = {name: build_method(config.method) for name, config in configs.items()}
    questions = build_questions(config)
    model = load_model(config.model)
    for method in methods.values():
        method.prepare(model)
    measured = pd.read_csv(options.output) if options.output.exists() else pd.DataFrame()
    done = set(measured[["settings", "dataset", "_id"]].itertuples(index=False, name=None)) if len(measured) else set()
    environment = describe(config.model)
    shared = {key: environment[key] for key in ("weights_format", "dtype", "device")}
    shared |= {"model": config.model.name, "limit": config.model.limit}
    for prompt, question in questions[: options.records]:
        missing = {}
        for name, method in methods.items():
            settings = digest(asdict(method) | shared)
            if (settings, *prompt.record.key) not in done:
                missing[name] = method, settings
        if missing:
            rows = pd.DataFrame(measure(model, missing, prompt, question))
            rows = rows.assign(commit=environment["commit"], device=environment["device"])
            measured = pd.concat([measured, rows], ignore_index=True)
            measured.to_csv(options.output, index=False, float_format="%.6g", lineterminator="\n")
    means = measured.groupby(["method", "settings"], sort=False)[["kl", "score", "ttft_s", "prompt_computed"]].mean()
    print(means.droplevel("settings").to_string(float_format="%.4f"))


def build_questions(config: RunConfig) -> list[tuple[Prompt, torch.Tensor]]:
    """Build each record's prompt with the first question, and the token ids of the second as the next message."""
    facts, resources = load_facts(config.data.datasets), Resources()
    tokenizer = resources.tokenizer(config.model)
    names = choose(config.task, config.data, facts).datasets
    datasets = [*resources.records_by_dataset(names, config.data, config.model).values()]
    others = {record.key: records[index - 1] for records in datasets for index, record in enumerate(records)}
    questions = []
    for record in interleave(datasets):
        builder = PromptBuilder(tokenizer, config.model, facts[record.dataset])
        if others[record.key] is record or "{context}" not in builder.facts.prompt or not record.input:
            raise LazyBenchError(f"{record.dataset}: a second question needs two records, each with an input")
        first = builder.build(replace(record, input=others[record.key].input))
        questions.append((replace(first, record=record), follow_up(builder, record)))
    return questions


def follow_up(builder: PromptBuilder, record: Record) -> torch.Tensor:
    """Return token ids of a record's question as the next message: what follows the context in its dataset's prompt."""
    text = builder.facts.prompt.partition("{context}")[2].format(input=record.input).strip()
    if builder.facts.chat and builder.model.chat == "template":
        messages = [("user", "-"), ("assistant", NO_ANSWER), ("user", text)]
        chat = builder.tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in messages],
            tokenize=False,
            add_generation_prompt=True,
            **builder.model.template,
        )
        text = chat.partition(NO_ANSWER)[2]
    else:
        text = f"\n\n{text}"
    return torch.tensor([builder.tokenizer(text, add_special_tokens=False).input_ids])


def measure(
    model: PreTrainedModel, methods: dict[str, tuple[Method, str]], prompt: Prompt, question: torch.Tensor
) -> list[dict[str, object]]:
    """Measure the second answer of each method, given with the digest of its settings: a row a seed."""
    decode = decoder_for(model, prompt)
    first = decode(prompt.ids)
    first = first[:-1] if first[-1] in decode.stop_ids else first  # the chat's template ends the message
    turns = (*(torch.tensor([[token]]) for token in first), question)
    second = SecondTurn(model, decode.max_new_tokens, decode.stop_ids, turns=turns)
    unmodified = unmodified_answer(prompt, second, second.max_new_tokens)
    facts, record, rows = prompt.builder.facts, prompt.record, []
    for name, (method, settings) in methods.items():
        for seed in range(method.repeats):
            output = answer(method, prompt, second, seed)
            kls = divergence(method, prompt, second, unmodified, seed)
            rows.append(
                {
                    "method": name,
                    "settings": settings,
                    "dataset": record.dataset,
                    "_id": record.id,
                    "seed": seed,
                    "tokens": prompt.ids.shape[1],
                    "first_answer_tokens": len(first),
                    "question_tokens": question.shape[1],
                    "kl": float(kls.mean()),
                    "score": scoring.score(facts, to_text(output.tokens, prompt), record.answers, record.all_classes),
                    "ttft_s": second.ttft_s,
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
