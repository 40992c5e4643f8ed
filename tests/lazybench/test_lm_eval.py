"""LazyLLM as a model of the Language Model Evaluation Harness: what it answers is what the library answers."""

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

import lazyllm
from lazybench.data.facts import load_facts
from lazyllm.extras.lm_eval import LazyLM

README = Path(lazyllm.__file__).with_name("README.md").read_text("utf-8")
COMMANDS = re.findall(r"^python -m lazyllm\.extras\.lm_eval .*$", README, re.MULTILINE)
SCHEDULE = "1:0.5,2:0.6"
RANKING = {"queries": 4, "pooling": 3}
# Its LongBench; the package itself need not be imported to be found.
LONGBENCH = Path(importlib.util.find_spec("lm_eval").origin).parent / "tasks/longbench"
# Datasets whose prompts it writes with another blank or newline than LongBench's own code.
BLANKS = ("triviaqa", "samsum", "passage_count", "passage_retrieval_en", "lcc", "repobench-p")
# It has the form that passage retrieval expects.
RIGHT = "Paragraph 1"
STORY = "The tower is old. It stands on a hill near the sea, and its keeper counts the ships. "
RECORDS = [
    {"text": f"{STORY * (2 + place)}How many ships, {name}?", "choices": [" two", " none at all", " a few"], "right": 1}
    for place, name in enumerate(("Ann", "Bob", "Cid", "Dora", "Eve"))
]
ANSWER = {
    "task": "tiny_answer",
    "output_type": "generate_until",
    "doc_to_text": "{{text}}",
    "doc_to_target": " two",
    "generation_kwargs": {"max_gen_toks": 6, "do_sample": False, "until": ["\n\n\n"]},
    "metric_list": [{"metric": "exact_match"}],
}
CHOICE = {
    "task": "tiny_choice",
    "output_type": "multiple_choice",
    "doc_to_text": "{{text}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "right",
    "target_delimiter": "",
    "metric_list": [{"metric": "acc"}],
}


@pytest.fixture
def tasks(tmp_path):
    """A folder of tasks over records of a file."""
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tmp_path / "records.jsonl")}}}
    for task in (ANSWER, CHOICE):
        (tmp_path / f"{task['task']}.yaml").write_text(yaml.safe_dump({**task, **data, "test_split": "test"}))
    return tmp_path


def evaluate(tasks, tiny_model, *names, **settings):
    """The harness's samples of each task: what was asked, and what was answered."""
    arguments = {"pretrained": str(tiny_model), "schedule": SCHEDULE, **settings.pop("model_args", {})}
    found = simple_evaluate(
        "lazyllm",
        model_args=arguments,
        tasks=list(names),
        device="cpu",
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
        **settings,
    )
    return found["samples"]


@pytest.fixture(scope="module")
def model(tiny_model):
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_model).eval()


@pytest.mark.parametrize(("batch", "importance"), [(1, RANKING), (3, None)])
def test_it_answers_as_the_library_does(batch, importance, tasks, tiny_model, model, tokenizer):
    asked = {"importance": importance} if importance else {}
    samples = evaluate(tasks, tiny_model, "tiny_answer", batch_size=batch, model_args=asked)["tiny_answer"]
    selection = lazyllm.Importance(**(importance or {}))
    unmodified = []
    for sample, record in zip(sorted(samples, key=lambda sample: sample["doc_id"]), RECORDS, strict=True):
        ids = tokenizer(record["text"], return_tensors="pt").input_ids
        with lazyllm.enable(model, SCHEDULE, selection=selection):
            answer = model.generate(ids, max_new_tokens=6, do_sample=False)
        assert sample["resps"] == [[tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True)]]
        plain = model.generate(ids, max_new_tokens=6, do_sample=False)
        unmodified.append(torch.equal(plain, answer))
    assert not all(unmodified)


def test_choices_are_as_likely_as_the_library_says(tasks, tiny_model, model, tokenizer):
    samples = evaluate(tasks, tiny_model, "tiny_choice")["tiny_choice"]
    for sample, record in zip(sorted(samples, key=lambda sample: sample["doc_id"]), RECORDS, strict=True):
        choices = [tokenizer(choice, add_special_tokens=False).input_ids for choice in record["choices"]]
        with lazyllm.enable(model, SCHEDULE):
            expected = lazyllm.log_likelihoods(model, tokenizer(record["text"]).input_ids, choices)
        for (found,), of in zip(sample["resps"], expected, strict=True):
            assert found == pytest.approx((of.total, of.greedy), abs=1e-4)
        whole = torch.tensor([tokenizer(record["text"]).input_ids + choices[0]])
        with torch.no_grad():
            logits = model(whole).logits[0, -len(choices[0]) - 1 : -1].log_softmax(-1)
        assert logits.gather(1, torch.tensor(choices[0])[:, None]).sum() != pytest.approx(expected[0].total, abs=1e-3)


def test_too_long_a_prompt_loses_its_beginning_as_in_hf(tiny_model, model, tokenizer):
    held = LazyLM(str(tiny_model), schedule=SCHEDULE, device="cpu", max_length=40)
    prompt, choice = tokenizer(STORY).input_ids, tokenizer(" two", add_special_tokens=False).input_ids
    (found,) = held._loglikelihood_tokens([(None, prompt, choice)], disable_tqdm=True)
    with lazyllm.enable(model, SCHEDULE):
        assert found[0] == pytest.approx(lazyllm.log_likelihoods(model, prompt[-37:], [choice])[0].total, abs=1e-4)
    with pytest.raises(lazyllm.LazyLLMError, match="41 tokens is longer than the model's max_length, 40"):
        held._loglikelihood_tokens([(None, prompt, prompt[:41])], disable_tqdm=True)


@pytest.mark.slow
def test_a_command_of_the_readme_scores_a_task(tasks, tiny_model):
    line = COMMANDS[0].replace("MODEL", str(tiny_model)).replace("longbench_qasper", "tiny_choice")
    where = ("--include_path", str(tasks), "--device", "cpu", "--batch_size", "2")
    done = subprocess.run([sys.executable, *shlex.split(line)[1:], *where], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "|tiny_choice|" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "'schedule'"),
        ({"schedule": "9:0.5"}, "the schedule prunes after layer 9, but the model has 4 layers"),
        ({"schedule": SCHEDULE, "importance": "most"}, "must be an instance of a ranking"),
        ({"schedule": SCHEDULE, "importance": {"query": 8}}, "'query'"),
    ],
)
def test_what_is_not_supported_is_refused_before_the_first_record(arguments, said, tiny_model):
    with pytest.raises((lazyllm.LazyLLMError, TypeError), match=said):
        LazyLM(str(tiny_model), device="cpu", **arguments)


@pytest.mark.slow
def test_its_longbench_asks_what_ours_asks(tasks, tiny_model):
    facts = {name: of for name, of in load_facts().items() if of.language == "en"}
    for name in facts:  # the harness's own tasks of these datasets, over a record of ours each
        record = {
            "context": f"The text of {name}.",
            "question": "What is it?",
            "answers": [RIGHT],
            "all_classes": [RIGHT],
        }
        (tasks / f"{name}.jsonl").write_text(json.dumps(record) + "\n")
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(tasks / f"{name}.jsonl")}}}
        task = {"include": str(LONGBENCH / f"{name}.yaml"), "dataset_name": None, **data}
        (tasks / f"{name}.yaml").write_text(yaml.safe_dump(task))
    names = [f"longbench_{name}" for name in facts]
    samples = evaluate(tasks, tiny_model, *names, gen_kwargs={"max_gen_toks": 4})
    assert len(samples) == 16
    for name, of in facts.items():
        (sample,) = samples[f"longbench_{name}"]
        (asked, settings), ((answer,),) = sample["arguments"][0], sample["resps"]
        ours = of.prompt.format(context=f"The text of {name}.", input="What is it?")
        assert asked.split() == ours.split(), name
        assert (asked != ours) == (name in BLANKS), name
        assert ("\n" in settings["until"]) == (of.first_line or of.stop_at_newline), name
        assert 0 <= len(answer) <= 4
        assert 0 <= sample["score"] <= 1
