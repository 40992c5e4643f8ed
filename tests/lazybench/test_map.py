"""`lazybench map`: the page of the tokens that methods prune and revive."""

import re

import pytest
from matplotlib import pyplot
from support import one_line, page_data


@pytest.fixture
def page(tmp_path):
    return tmp_path / "pages" / "map.html"


@pytest.fixture
def call(lazybench, six_layers, page):
    """Call `lazybench map` on the tiny model; returns (exit code, what it printed, stderr)."""

    def call(*words):
        settings = {"model.path": six_layers, "model.name": "tiny", "model.chat": "null", "model.limit": 300}
        settings |= {"data.limit": 2, "data.tokens": 512, "new_tokens": 6, "output": page, "task": "2wikimqa"}
        given = {word.partition("=")[0] for word in words} | ({"task"} if "text=" in " ".join(words) else set())
        return lazybench("map", *(f"{key}={value}" for key, value in settings.items() if key not in given), *words)

    return call


def read(page):
    return page_data(page.read_text("ascii"))


def test_methods_stand_side_by_side(call, page):
    code, out, err = call("method=lazyllm,lazyllm+,static_pruning")
    assert code == 0, err
    titles, data = read(page)
    assert titles == ["LazyLLM 23%:0.6,50%:0.6", "LazyLLM+ 23%:0.54,50%:0.54", "static pruning layer=16% keep=0.5"]
    assert f"saved in {page}" in out
    tokens = len(data["prompt"])
    assert 290 <= tokens <= 310
    for one, fractions in zip(data["maps"], ([1, 0.6, 0.36], [1, 0.54, 0.29], [1, 0.5]), strict=True):
        reached = [sum(depth >= stage for depth in one["depths"]) / tokens for stage in range(len(fractions))]
        assert reached == pytest.approx(fractions, abs=0.01)
        assert one["num_tokens"] == [tokens + step for step in range(6)]
        assert len(one["answer"]) == 6
    revived = [sum(len(positions) for step in one["revived"] for positions in step) for one in data["maps"]]
    assert revived[0] > 0 == revived[2]


def test_settings_stand_side_by_side_for_a_record_by_its_number_or_its_id(call, page):
    words = ("method=lazyllm", "method.schedule=[1:0.5],[1:0.5,3:0.25]")
    code, out, err = call(*words, "record=1")
    assert code == 0, err
    titles, data = read(page)
    assert titles == ["LazyLLM 1:0.5", "LazyLLM 1:0.5,3:0.25"]
    assert [max(one["depths"]) for one in data["maps"]] == [1, 2]
    code, again, err = call(*words, f"record={re.search('record 2wikimqa ([0-9a-f]{32})', out)[1]}")
    assert (code, again, read(page)[1]) == (0, out, data)


def test_a_custom_prompt(call, page, tmp_path):
    prompt = 'Which is it: "</script>", naïve or 😀?\n' * 10  # longer than model.limit, and not cut
    mine = tmp_path / "mine.txt"
    mine.write_text(prompt, "utf-8")
    code, _, err = call(f"text={mine}", "method=fastkv", "method.layer=2", "model.chat='Q: {prompt} A:'")
    assert code == 0, err
    titles, data = read(page)
    assert titles == ["FastKV (TSP) layer=2 keep=0.2"]
    assert "".join(data["prompt"]) == f"<s>Q: {prompt} A:"
    assert str(tmp_path) not in page.read_text()
    assert "the file of text=" in one_line(*call(f"text={mine}", f"output={mine}")[::2])
    assert mine.read_text("utf-8") == prompt


@pytest.mark.slow
def test_a_short_prompt_as_a_picture(call, page, tmp_path):
    mine, picture = tmp_path / "mine.txt", page.with_suffix(".png")
    mine.write_text("The tortoise is called Admiral. What is it called?")
    code, _, err = call(f"text={mine}", "method=lazyllm,static_pruning", f"output={picture}")
    assert code == 0, err
    drawn = pyplot.imread(picture)
    assert drawn.shape[0] > 200 < drawn.shape[1]
    assert len({tuple(colour) for colour in drawn[::3, ::3].reshape(-1, drawn.shape[2]).round(2)}) > 4  # of shades


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method=lazyllm,random_drop"], "method random_drop does not run on LazyLLM's engine"),
        (["record=0,1"], "record= has several values"),
        (["record=7"], "record=7: task=2wikimqa has 2 records here: give a number from 0 to 1, or the _id of one"),
        (["new_tokens=4000"], "more than the model's 4096"),
        (["output=/dev/null/map.html"], "cannot be written"),
    ],
)
def test_bad_input_ends_in_one_line(call, page, words, message):
    code, _, err = call(*words)
    assert message in one_line(code, err)
    assert not page.parent.exists()
