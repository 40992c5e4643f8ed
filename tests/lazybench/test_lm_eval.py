"""LazyLLM as a model of the Language Model Evaluation Harness answers as the library does."""

import json

import pytest
import torch
import yaml
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

import lazyllm
from lazyllm.extras.lm_eval import LazyLM

SCHEDULE = "1:0.5,2:0.6"
RANKING = {"queries": 4, "pooling": 3}
STORY = "The tower is old. It stands on a hill near the sea, and its keeper counts the ships. "
RECORDS = [
    {"text": f"{STORY * (2 + index)}How many ships, {name}?", "choices": [" two", " none at all", " a few"], "right": 1}
    for index, name in enumerate(("Ann", "Bob", "Cid", "Dora", "Eve"))
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


def evaluate(tasks, tiny_model, task, batch_size=1, **arguments):
    """Run the harness; return the samples of a task, in order of the records."""
    results = simple_evaluate(
        "lazyllm",
        model_args={"pretrained": str(tiny_model), "schedule": SCHEDULE, **arguments},
        tasks=[task],
        device="cpu",
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
        batch_size=batch_size,
    )
    return sorted(results["samples"][task], key=lambda sample: sample["doc_id"])


def test_it_answers_as_the_library_does(tasks, tiny_model, model, tokenizer):
    samples, unmodified = evaluate(tasks, tiny_model, "tiny_answer", batch_size=3, ranking=RANKING), []
    for sample, record in zip(samples, RECORDS, strict=True):
        ids = tokenizer(record["text"], return_tensors="pt").input_ids
        with lazyllm.enable(model, SCHEDULE, ranking=lazyllm.AttentionRanking(**RANKING)):
            answer = model.generate(ids, max_new_tokens=6, do_sample=False)
        assert sample["resps"] == [[tokenizer.decode(answer[0, ids.shape[1] :], skip_special_tokens=True)]]
        plain = model.generate(ids, max_new_tokens=6, do_sample=False)
        unmodified.append(torch.equal(plain, answer))
    assert not all(unmodified)


@pytest.mark.slow
def test_choices_are_as_likely_as_the_library_says(tasks, tiny_model, model, tokenizer):
    for sample, record in zip(evaluate(tasks, tiny_model, "tiny_choice"), RECORDS, strict=True):
        choices = [tokenizer(choice, add_special_tokens=False).input_ids for choice in record["choices"]]
        with lazyllm.enable(model, SCHEDULE):
            expected = lazyllm.log_likelihoods(model, tokenizer(record["text"]).input_ids, choices)
        for (response,), likelihood in zip(sample["resps"], expected, strict=True):
            assert response == pytest.approx((likelihood.total, likelihood.greedy), abs=1e-4)


def test_too_long_a_prompt_loses_its_beginning_as_in_hf(tiny_model, model, tokenizer):
    short = LazyLM(str(tiny_model), schedule=SCHEDULE, device="cpu", max_length=40)
    prompt, choice = tokenizer(STORY).input_ids, tokenizer(" two", add_special_tokens=False).input_ids
    (response,) = short._loglikelihood_tokens([(None, prompt, choice)], disable_tqdm=True)
    with lazyllm.enable(model, SCHEDULE):
        assert response[0] == pytest.approx(lazyllm.log_likelihoods(model, prompt[-37:], [choice])[0].total, abs=1e-4)
    with pytest.raises(lazyllm.LazyLLMError, match="41 tokens is longer than the model's max_length, 40"):
        short._loglikelihood_tokens([(None, prompt, prompt[:41])], disable_tqdm=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "'schedule'"),
        ({"schedule": "9:0.5"}, "the schedule prunes after layer 9, but the model has 4 layers"),
        ({"schedule": SCHEDULE, "ranking": "most"}, "must be an instance"),
        ({"schedule": SCHEDULE, "ranking": {"query": 8}}, "'query'"),
    ],
)
def test_bad_arguments_are_refused_before_the_first_record(arguments, message, tiny_model):
    with pytest.raises((lazyllm.LazyLLMError, TypeError), match=message):
        LazyLM(str(tiny_model), device="cpu", **arguments)
