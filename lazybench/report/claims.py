"""Verdicts on the paper's claims, by rules that were fixed before the study's runs.

A model's 95% interval speaks for a claim if all of it is on the claim's side of the limit, and against it if all of it
is on the other side. The verdict over models is *yes* if at least two speak for the claim and none against it, *no* if
at least two speak against it, else *cannot tell*. All records count; speedups are of the timed ones. The rules:

- A negligible drop: the macro-average is above the unmodified model's less 1%.
- 2.34x and 3.0x in multi-document QA (matched 2x and 3x): the first token is that fast, and the score above the
  unmodified model's less 1% and 10%. A score below that speaks against it, unless the first token is faster.
- A rival loses more, and revival is crucial: LazyLLM's score less the other's on the same records is above 0; its KL
  over the other's, by geometric and by arithmetic mean, is below 1.
- Compression is slower: the speedup of its first token is below 1.
- By task, generation as measured is 1.0 to 1.8 times as fast, and the computed share of the prompt within those of the
  paper's Table 2: each task's value lies within, and the interval of their mean. A task whose interval lies outside
  speaks against it.
- Later layers are less sensitive (Figure 6): the KL of a stage at the first depth over that at the last is above 1.
- Tokens are never used (Figure 7): the share of the prompt without keys and values at the end, mean over layers, is
  above 0.
- The first token's time (Figure 1) is at least the paper's multiple of a decode step, and share of the generation.
- Never slower: the speedup of the whole answer at equal length is above 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pandas as pd

from lazybench.analysis import averages, labels
from lazybench.analysis.averages import Measure, average
from lazybench.analysis.blocks import Block, Row
from lazybench.analysis.intervals import Estimate, mean_of_ratios
from lazybench.analysis.paired import by_operations, pair
from lazybench.analysis.records import KEY
from lazybench.report import paper
from lazybench.report.tables import NONE

_LAZY, _MULTIDOC = "lazyllm", "multidoc_qa"
_SPEEDUPS = (("2x", 2.34, 1), ("3x", 3.0, 10))  # at which target, first token, and loss (%)
_GENERATION = (1.0, 1.8)
_ALONE = {1: "for", 0: "open", -1: "against"}
_UNUSED = replace(averages.COMPUTED, top=lambda records: 1 - records["prompt_computed"], digits=0)


class Finding(NamedTuple):
    """The result of testing a claim on a model: 1 speaks for it, -1 against it, 0 is neither, None is not measured."""

    claim: str
    case: str  # the number of operations, or what else the claim is tested on
    text: str
    sign: int | None = None  # by score, or by the claim's own measure
    geometric_kl: int | None = None
    kl: int | None = None


def claims(blocks: Sequence[Block]) -> pd.DataFrame | None:
    """Make the table of all claims: `Claim`, `At`, a column per model, and three of verdicts; None without any.

    They are tested on LongBench, or its part MiniLongBench, with LazyLLM: of a model's blocks on the one with the most
    methods, Figure 6 on all.
    """
    models: dict[str, list[Block]] = {}
    for block in blocks:
        if block.is_longbench:
            models.setdefault(block.model_title, []).append(block)
    if not any(row.method == _LAZY for own in models.values() for block in own for row in block.rows):
        return None
    found = {title: {one[:2]: one for one in _findings(own)} for title, own in models.items()}
    lines = []
    for claim, case in dict.fromkeys(key for own in found.values() for key in own):
        own = {title: findings.get((claim, case)) for title, findings in found.items()}
        line = {"Claim": claim, "At": case or "not matched"}
        line |= {title: one.text if one else NONE for title, one in own.items()}
        for title, key in {"Verdict": "sign", "By KL, geometric": "geometric_kl", "By KL, mean": "kl"}.items():
            line[title] = verdict([getattr(one, key) for one in own.values() if one])
        lines.append(line)
    order = [*dict.fromkeys(line["Claim"] for line in lines)]
    return pd.DataFrame(sorted(lines, key=lambda line: order.index(line["Claim"])))


def verdict(signs: Sequence[int | None]) -> str:
    """Return the verdict over models; of a single one, what it says."""
    measured = [sign for sign in signs if sign is not None]
    if not measured:
        return NONE
    if len(measured) < 2:
        return f"cannot tell (1 model, {_ALONE[measured[0]]})"
    if measured.count(1) >= 2 and -1 not in measured:
        return "yes"
    return "no" if measured.count(-1) >= 2 else "cannot tell"


def _findings(blocks: Sequence[Block]) -> Iterator[Finding]:
    """Test all claims on the blocks of a model."""
    block = max(blocks, key=lambda block: len({row.method for row in block.compared}))
    for target, rows in by_operations(block.compared).items():
        if _LAZY in rows:
            case = _Case(block, target, rows[_LAZY])
            yield case.negligible()
            for _, speedup, loss in [one for one in _SPEEDUPS if target in (one[0], "")]:
                yield case.multidoc(speedup, loss)
            for other in [rows[name] for name in labels.METHODS[1:-1] if name in rows]:
                yield case.against(f"{other.title} loses more at the same operations", other)
            claim = "whole answers {} times as fast, by task (as measured)"
            yield case.within(claim, averages.GENERATION, _GENERATION)
            claim = "{}% of the prompt's tokens computed, by task"
            yield case.within(claim, averages.COMPUTED, paper.prompt_computed())
            yield case.beyond("tokens that are never used (Figure 7), mean over layers", _UNUSED, 0, "%")
            yield case.beyond("never slower than unmodified (whole answer at equal length)", averages.ANSWER, 1, "×")
            if other := rows.get("lazyllm_no_revival"):
                yield case.against("revival is crucial (LazyLLM against LazyLLM without it)", other)
        if compression := rows.get("prompt_compression"):
            claim = "prompt compression is slower than unmodified (first token)"
            yield _Case(block, target, compression).beyond(claim, averages.TTFT, 1, "×", side=-1)
    yield from _first_token(block)
    for own in blocks:
        yield from _layers(own)


@dataclass(frozen=True)
class _Case:
    """A row at a number of operations."""

    block: Block
    target: str
    row: Row

    def estimate(self, measure: Measure, task: str = "") -> Estimate:
        """Estimate a measure on the mean of the tasks or a task; without a value if the row lacks a dataset of it."""
        tasks: Mapping[str, Sequence[str]] = self.block.averaged(self.block.compared)
        tasks = {task: tasks.get(task, ())} if task else tasks
        is_whole = all(names and self.row.datasets.issuperset(names) for names in tasks.values())
        return average(self.row.select(tasks), measure) if is_whole else Estimate()

    def loss(self, share: float, task: str = "") -> tuple[str, int | None]:
        """Return the score difference as text, and its sign against a loss of a share (%) of the unmodified score."""
        difference, score = (self.estimate(one, task) for one in (averages.SCORE_DIFFERENCE, averages.UNMODIFIED_SCORE))
        if score.value is None:
            return NONE, None
        return f"{_text(difference, '{:+.1f}')}, of {score.value:.1f}", _sign(difference, -share / 100 * score.value)

    def negligible(self) -> Finding:
        return Finding("negligible drop in all tasks (macro-average within 1%)", self.target, *self.loss(1))

    def multidoc(self, speedup: float, loss: float) -> Finding:
        ttft, (text, kept) = self.estimate(averages.TTFT, _MULTIDOC), self.loss(loss, _MULTIDOC)
        fast, sign = _sign(ttft, speedup), None
        if fast is not None and kept is not None:
            sign = -1 if kept < 0 and fast < 1 else int(fast > 0 and kept > 0)
        case = f"{self.target} {speedup}× at {loss}%".strip()
        return Finding("first token at a loss (multi-document QA)", case, f"{_text(ttft, '{:.2f}', '×')}; {text}", sign)

    def beyond(self, claim: str, measure: Measure, limit: float, unit: str, side: int = 1) -> Finding:
        """Test whether a measure is above a limit, or below it for `side` -1."""
        result = self.estimate(measure)
        return Finding(claim, self.target, _text(result, f"{{:.{measure.digits}f}}", unit), _sign(result, limit, side))

    def within(self, claim: str, measure: Measure, limits: tuple[float, float]) -> Finding:
        """Test whether a measure lies within limits, which the claim names, on each task and on their mean."""
        results = [self.estimate(measure, task) for task in self.block.averaged(self.block.compared)]
        results, mean = [result for result in results if result.value is not None], self.estimate(measure)
        claim = claim.format("{} to {}".format(*limits))
        if not results:
            return Finding(claim, self.target, NONE)
        values, counts = ([getattr(result, key) for result in results] for key in ("value", "records"))
        inside = sum(limits[0] <= value <= limits[1] for value in values)
        form = f"{{}} of {{}} tasks: {{:.{measure.digits}f}} to {{:.{measure.digits}f}}, n={{}} to {{}}"
        text = form.format(inside, len(values), min(values), max(values), min(counts), max(counts))
        least, *signs = (min(_sign(one, limits[0]) or 0, _sign(one, limits[1], -1) or 0) for one in (mean, *results))
        return Finding(claim, self.target, text, -1 if -1 in signs else int(least > 0 and inside == len(values)))

    def against(self, claim: str, other: Row) -> Finding:
        """Compare with a method that the claim says to lose more."""
        score, geometric, mean = pair(self.block, self.row, other).values()
        text = f"{_text(score, '{:+.1f}')}; {_ratios(geometric, mean, geometric.records != score.records)}"
        return Finding(claim, self.target, text, _sign(score, 0), _sign(geometric, 1, -1), _sign(mean, 1, -1))


def _layers(block: Block) -> Iterator[Finding]:
    """Compare single stages at the first and last depth, at each keep."""
    by_keep: dict[tuple[float, bool], list[tuple[float, Row]]] = {}
    for row in block.rows:
        if row.method == _LAZY and len(stages := labels.stages(row.runs[0])) == 1:
            ((layer, keep),) = stages
            by_keep.setdefault((keep, layer.endswith("%")), []).append((float(layer.removesuffix("%")), row))
    for (keep, _), rows in sorted(by_keep.items(), key=lambda item: item[0], reverse=True):
        (first, early), (last, late) = (end(rows, key=lambda one: one[0]) for end in (min, max))
        if first < last:
            _, geometric, mean = pair(block, early, late).values()
            layers = [row.setting.split(":")[0] for row in (early, late)]
            text = f"{_ratios(geometric, mean, True)}; {' over '.join(layers)}"
            claim = "later layers are less sensitive (Figure 6)"
            yield Finding(claim, f"keep {keep:g}", text, None, _sign(geometric, 1), _sign(mean, 1))


def _first_token(block: Block) -> Iterator[Finding]:
    """Compare the unmodified model's first token with its decode steps and generation, as Figure 1 shows them."""
    share, multiple = paper.figure1()
    times = block.records.dropna(subset=["unmodified_ttft_s", "unmodified_generation_s"]).drop_duplicates(KEY)
    claim = f"first token at least {multiple:.0f} decode steps and {share:.0f}% of the time (Figure 1)"
    for case, key, limit, scale, unit in (
        ("steps", "decode_step_s", multiple, 1, ""),
        ("time", "generation_s", share, 100, "%"),
    ):
        known = times.dropna(subset=f"unmodified_{key}")
        if len(known):
            top, bottom = scale * known["unmodified_ttft_s"], known[f"unmodified_{key}"]
            result = mean_of_ratios(top, bottom, [0] * len(known), [1] * len(known))
            yield Finding(claim, case, _text(replace(result, records=len(known)), "{:.1f}", unit), _sign(result, limit))


def _sign(result: Estimate, limit: float, side: int = 1) -> int | None:
    """Return 1 if the interval is on one side of the limit, above for `side` 1, and -1 on the other."""
    if result.value is None:
        return None
    if result.low is None or result.high is None:
        return 0
    return side * (int(result.low > limit) - int(result.high < limit))


def _text(result: Estimate, form: str, unit: str = "", count: bool = True) -> str:
    """Format value, interval and number of records."""
    if result.value is None:
        return NONE
    value, *ends = (form.format(end) for end in (result.value, result.low, result.high) if end is not None)
    text = value + unit + f" ({', '.join(ends)})" * bool(ends) + f", n={result.records}" * count
    return text.replace("-", "−")


def _ratios(geometric: Estimate, mean: Estimate, count: bool) -> str:
    return f"KL ×{_text(geometric, '{:.2f}', count=count)}; mean ×{_text(mean, '{:.2f}', count=False)}"
