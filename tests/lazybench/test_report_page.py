"""The report's page: what its first screen says, that it fits every screen, what each run's entry holds."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from report_runs import rows_of, write_everything, write_run

from lazybench.cli.report import main

TASK = ("hotpotqa", "2wikimqa", "musique")
CPU = {"device": "AMD EPYC, 2 cores", "device_kind": "cpu", "threads": 2, "dtype": "float32", "commit": "0ce529c"}
CPU |= {"weights_format": "GGUF Q4_1, 4-bit, dequantised", "date": "2026-05-04"}
VOID = ("meta", "img", "br", "input")


class Page(HTMLParser):
    """A page's tags with their attributes in order, its text in order, and the tags that are not closed."""

    def __init__(self, text: str):
        super().__init__()
        self.found, self.said, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.said.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture
def report(tmp_path, monkeypatch):
    """Makes a report of the runs in `runs/`, without figures unless asked for; gives the page's HTML."""

    def make(figures=False):
        if not figures:
            monkeypatch.setattr("lazybench.report.figures.FIGURES", ())
        assert main([f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}"]) == 0
        return (tmp_path / "report/report.html").read_text("utf-8")

    return make


def terms(html):
    """Names and texts of the page's lists of terms."""
    return re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html)


def test_the_first_thing_said_is_what_was_run(report, tmp_path):
    rows = rows_of(TASK)
    for number, row in enumerate(rows):
        row["prompt_tokens"] = 1000 + 100 * number
    write_run(tmp_path / "runs", "lazyllm", rows, model={"name": "smollm2_135m"}, environment=CPU)
    html = report()
    first = html[: html.index("<table>")]
    assert terms(first) == [
        ("Model", "smollm2_135m, GGUF Q4_1, 4-bit, dequantised, computed in float32"),
        ("Data", "longbench, 3 datasets"),
        ("Methods", "LazyLLM"),
        ("Records", "12, in 1 run"),
        ("Prompt length", "median 1,550, longest 2,100 tokens"),
        ("Device", "AMD EPYC, 2 cores, 2 threads"),
        ("Commit", "0ce529c"),
        ("Date", "2026-05-04"),
    ]


def test_what_is_not_known_is_not_said(report, tmp_path):
    rows = [row | {"prompt_tokens": None} for row in rows_of(TASK)]
    write_run(tmp_path / "runs", "lazyllm", rows, environment={"commit": None})
    html = report()
    assert not {"Prompt length", "Commit", "Date"} & {name for name, _ in terms(html)}
    assert "None" not in re.sub("<pre>.*?</pre>", "", html, flags=re.DOTALL)


@pytest.mark.slow
def test_the_main_figure_stands_before_the_tables_and_all_say_what_they_are(report, tmp_path):
    write_everything(tmp_path / "runs", records=2)
    html = report(figures=True)
    before, _, after = html.partition("<table>")
    assert re.findall("<figcaption>(Figure .)", before) == ["Figure 5"]
    assert re.findall("<figcaption>(Figure .)", after) == ["Figure 7", "Figure 1", "Figure 2", "Figure 6"]
    assert all("llama2_7b on longbench" in image["alt"] for image in Page(html).all("img"))


def test_it_is_made_for_every_screen_and_reader(report, tmp_path):
    write_run(tmp_path / "runs", "baseline", rows_of(TASK))
    write_run(tmp_path / "runs", "lazyllm", rows_of(TASK))
    html = report()
    page = Page(html)
    assert page.open == []
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    style = html[html.index("<style>") : html.index("</style>")]
    dark = style[style.index("prefers-color-scheme: dark") :]
    # Every colour has a dark one, and none is named outside the two sets.
    named = set(re.findall(r"(--[\w-]+): #", style[: style.index("@media")]))
    assert named == set(re.findall(r"(--[\w-]+): #", dark[: dark.index("\n}")]))
    assert set(re.findall(r"#[0-9a-f]{3,6}\b", dark[dark.index("\n}") :])) == {"#fff"}  # figures stay on white
    assert all(cell.get("scope") in ("col", "row", "rowgroup") for cell in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table")) == 3
    assert html.count("<div class=wide") == 3  # a table scrolls, not the page
    assert [tag for tag, _ in page.found if re.fullmatch("h[1-6]", tag)][:3] == ["h1", "h2", "h3"]


def luminance(colour):
    channels = [int(part * (2 if len(part) == 1 else 1), 16) / 255 for part in colour]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("place", [0, 1], ids=["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(report, tmp_path, place):
    write_run(tmp_path / "runs", "baseline", rows_of(TASK))
    sets = re.findall(r":root \{(.*?)\}", report(), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): #(\w+)", sets[place]))
    split = {name: re.findall("..?" if len(text) == 6 else ".", text) for name, text in colours.items()}
    for text, behind in [("text", "paper"), ("quiet", "paper"), ("text", "code"), ("text", "alarm-paper")]:
        low, high = sorted(luminance(split[name]) for name in (text, behind))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, behind)  # WCAG 2, AA


def test_a_runs_entry_has_its_schedule_in_words_and_the_command(report, tmp_path):
    settings = {"schedule": "33%:0.7,20:0.5"}
    write_run(tmp_path / "runs", "lazyllm", rows_of(TASK), method=settings, environment=CPU)
    write_run(tmp_path / "runs", "static_pruning", rows_of(TASK, 2), finished=False, environment=CPU)
    html = report()
    runs = html[html.index("<h3>Runs</h3>") :]
    first, second = runs.split("<details data-run><summary><strong>")[1:]
    assert first.startswith("static pruning layer=4 keep=0.5</strong>: Multi-document QA, 6 records, unfinished, 2026")
    assert ("Settings", "layer = 4, keep = 0.5") in terms(first)
    words = "after 33% of the layers keep 70%, after layer 20 keep 50% of the prompt&#x27;s tokens"
    assert ("Schedule", f"33%:0.7,20:0.5: {words}") in terms(second)
    assert {("Task", "Multi-document QA"), ("Records", "12"), ("Status", "finished")} <= set(terms(second))
    (command,) = re.findall("<pre class=command>(.*?)</pre>", second)[:1]
    assert command.startswith("python -m lazybench run model=llama2_7b data=longbench data.root=FOLDER method=lazyllm ")
    assert command.endswith("task=multidoc_qa")
    assert "FOLDER stands for a folder of yours" in second


def test_many_warnings_are_folded_and_a_short_one_is_not(report, tmp_path):
    write_run(tmp_path / "runs", "lazyllm", rows_of(TASK), environment={"commit": "1+"})
    assert "<details class=warnings open><summary>1 warning" in report()
    write_run(tmp_path / "runs", "baseline", rows_of(TASK), environment={"dtype": "float32", "threads": 7})
    html = report()
    assert re.search(r"<details class=warnings><summary>\d warnings", html)
    assert html.index("class=warnings") < html.index("<table>")


def test_two_models_have_a_section_each(report, tmp_path):
    write_run(tmp_path / "runs", "lazyllm", rows_of(TASK))
    write_run(tmp_path / "runs", "lazyllm", rows_of(TASK, seed=1), model={"name": "xgen_7b"})
    html = report()
    heads = [re.sub("<.*?>", "", head) for head in re.findall("<h2>.*?</h2>", html)]
    assert heads[:2] == ["llama2_7b on longbench", "xgen_7b on longbench"]
    llama, xgen = html.split("<section ")[1:3]
    assert "paper, Llama 2" in llama
    assert "paper, Llama 2" not in xgen
    assert "22.31" in llama
    assert "20.68" in xgen


def test_models_data_tasks_and_rows_can_be_chosen(report, tmp_path):
    for model, data in (("llama2_7b", "longbench"), ("xgen_7b", "longbench"), ("xgen_7b", "mine")):
        for digest, tokens in enumerate((1024, 2048)):
            settings = {"model": {"name": model, "limit": tokens}, "data": {"name": data}}
            write_run(tmp_path / "runs", "lazyllm", rows_of(TASK), digest=f"{digest:012}", **settings)
    html = report()
    page = Page(html)
    assert page.open == []
    (form,) = page.all("form")
    assert "hidden" in form  # until the script runs
    options = [option["value"] for option in page.all("option")]
    assert {"llama2_7b", "xgen_7b", "longbench", "mine"} <= set(options)
    sections = [section for section in page.all("section") if "data-model" in section]
    chosen = {(section["data-model"], section["data-data"]) for section in sections}
    assert chosen == {("llama2_7b", "longbench"), ("xgen_7b", "longbench"), ("xgen_7b", "mine")}
    tasks = {body["data-task"] for body in page.all("tbody") if "data-task" in body}
    assert tasks
    assert tasks <= set(options)
    # What the script looks for is there.
    assert html.count("<details data-run>") == 6
    assert re.search(r"<th scope=row>[^<]*LazyLLM.*?1024", html)
    assert "src=" not in html[html.index("<script>") :]


def test_a_few_rows_have_nothing_to_choose_among(report, tmp_path):
    write_run(tmp_path / "runs", "lazyllm", rows_of(TASK))
    html = report()
    assert "<form" not in html
    assert "<script" not in html
