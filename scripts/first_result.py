"""Ask the embedded model about a fact in a long text, with and without pruning, for scripts/quickstart."""

from contextlib import nullcontext
from dataclasses import replace
from statistics import median

import yaml
from transformers.utils import logging

import lazyllm
from lazybench.config import CONF, ModelConfig
from lazybench.data import load_dataset_configs, sample
from lazybench.model.decoding import Decoder, Question, question_of, to_text
from lazybench.model.loading import load_model, load_tokenizer
from lazybench.model.prompts import PromptBuilder

SCHEDULE = "23%:0.54,50%:0.54"
RANKINGS = {"unmodified": None, "LazyLLM": lazyllm.AttentionRanking(), "lazyllm+": lazyllm.plus()}
QUESTION = "On which day was the flood?"
ROUNDS = 3

logging.disable_progress_bar()
config = ModelConfig(**yaml.safe_load((CONF / "model/smollm2_135m.yaml").read_text("utf-8")))
model, tokenizer = load_model(config), load_tokenizer(config)
(record,) = sample.load("multi_news", 1, seed=1, tokens=2000, count_tokens=lambda text: len(tokenizer.encode(text)))
record = replace(record, dataset="multifieldqa_en", input=QUESTION)  # multi_news asks for summaries
prompt = PromptBuilder(tokenizer, config, load_dataset_configs()[record.dataset]).build(record)
print(f"A generated text of {prompt.ids.shape[1]} tokens says: {record.answers[0].partition('. ')[0]}.")
print(f"The model is asked: {QUESTION}\n")


def run(name: str, question: Question) -> Decoder:
    """Answer the prompt with the method of this name."""
    ranking, decode = RANKINGS[name], Decoder(model, [question])
    with nullcontext() if ranking is None else lazyllm.enable(model, SCHEDULE, ranking=ranking):
        decode.start()
        decode([prompt.ids])
    return decode


# The first pass warms up and gives the answer. Trials generate the unmodified model's, so that they compare.
question = question_of(model, prompt)
answers = {name: run(name, question).answers[0] for name in RANKINGS}
question = question._replace(reference=answers["unmodified"], is_forced=True)
times = {name: [] for name in RANKINGS}
for _ in range(ROUNDS):
    for name, trials in times.items():
        trials.append(run(name, question).times)

texts = {name: to_text(answer, prompt).strip() for name, answer in answers.items()}
first, whole = ({name: median(seconds[end] for seconds in times[name]) for name in RANKINGS} for end in (0, -1))
width = max(map(len, texts.values()))
print(f"{'':10}  {'answer':{width}}  first token   whole answer")
for name, text in texts.items():
    shown = (f"{seconds[name]:5.2f} s {seconds['unmodified'] / seconds[name]:4.2f}x" for seconds in (first, whole))
    print(f"{name:10}  {text:{width}}  {'  '.join(shown)}")
print(
    "\nPruning computes only prompt tokens that get attention, which shortens the wait for the first token most."
    "\nThis record was chosen because all three answer it. README.md has the results over many records."
    f"\nTimes: median of {ROUNDS}, and how many times as fast; all three generate unmodified's tokens."
    "\nNext: source .venv/bin/activate; python -m lazybench run method=lazyllm+ task=multidoc_qa"
)
