"""MiniLongBench (arXiv 2505.19959): 237 of LongBench's records, from the hub or from a clone of its repository.

The hub's archive is in LongBench's format. The repository, github.com/MilkThink-Lab/MiniLongBench, has the records in
files of OpenCompass's predictions: whole prompts, from which `read` takes context and question.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lazybench.data import longbench
from lazybench.data.dataset_configs import load_dataset_configs
from lazybench.data.hub import explain_errors
from lazybench.data.record import Record
from lazybench.errors import LazyBenchError

_HUB = "linggm/MiniLongBench"
# Texts of LongBench's prompts, and what OpenCompass's have instead. The prompt of qasper is hotpotqa's.
_REPLACED = {
    "narrativeqa": {"asconcisely": "as concisely", "{input}\n": "{input}"},
    "multi_news": {"Summary:": "Summary:\n"},
    "triviaqa": {"{context}\n": "{context}\n\n"},
    "samsum": {"{context}\n": "{context}\n\n"},
}
# How a question begins after examples that have the same form.
_OPENINGS = {"trec": "Question:", "triviaqa": "Passage:", "samsum": "Dialogue:", "lsht": "新闻内容："}


def read(
    dataset: str, root: str | None, *, datasets: Mapping[str, Mapping[str, Any]]
) -> Iterator[Record | dict[str, Any]]:
    """Yield the records of `dataset`, one of `datasets`, which has the LongBench dataset that each is `like`.

    `root` is a clone of the repository, or files as `longbench.load` reads them; None takes the hub's.

    Raises:
        LazyBenchError: there is no such file, or a record in it does not have its form.
    """
    like = datasets[dataset]["like"]
    folder = Path(root or "").expanduser() / "pred_data/example"
    if root is None or not folder.is_dir():
        for record in longbench.load(like, root or longbench.download(_HUB), None):
            yield replace(record, dataset=dataset)
        return
    path, pattern = folder / f"MiniLongBench_{like}.json", re.compile(_pattern(like), re.DOTALL)
    with explain_errors(str(path), "data.root is a clone of MiniLongBench's repository", is_local=True):
        entries = json.loads(path.read_text("utf-8")).items()
    for number, entry in entries:
        try:
            parts, gold = entry["origin_prompt"], entry["gold"]
            prompt = parts if isinstance(parts, str) else "".join(part["prompt"] for part in parts)
            fields = pattern.fullmatch(prompt).groupdict()
        except (LookupError, TypeError, AttributeError) as error:
            advice = f"'origin_prompt' must be OpenCompass's prompt of {like}, beside 'gold'"
            raise LazyBenchError(f"{path}: record {number}: {advice}") from error
        answers = gold if isinstance(gold, dict) else {"answers": gold}
        language = load_dataset_configs()[like].language
        yield {"_id": number, "language": language, "input": "", **fields, **answers}


def _pattern(like: str) -> str:
    """Return a regular expression of a dataset's prompts with the groups `context` and `input`.

    The question of repobench-p, right after the context, is matched as a part of it.
    """
    prompt = load_dataset_configs()["hotpotqa" if like == "qasper" else like].prompt
    for text, replacement in _REPLACED.get(like, {}).items():
        prompt = prompt.replace(text, replacement)
    groups = {"context": "(?P<context>.*)", "input": f"(?P<input>{_OPENINGS.get(like, '')}.*)"}
    return re.sub(r"\\{(\w+)\\}", lambda match: groups[match[1]], re.escape(prompt))
