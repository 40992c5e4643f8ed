"""RULER-6 from the command line to the report."""

import pytest
import yaml
from support import folders, one_line, rows

CALLED = "RULER-6, generated"


def test_lengths_are_run_and_reported_under_their_own_name(run, lazybench, tmp_path):
    words = ("data=ruler", "task=niah_single_1", "method=baseline", "timing.warmup=0", "data.depths=[0,100]")
    words += ("data.datasets.niah_single_1.max_new_tokens=4",)
    for tokens in (1200, 2000):
        code, out, err = run(*words, f"data.tokens={tokens}")
        assert code == 0, err
        assert f"records: {CALLED}\n" in out
    found = {}
    for folder in folders(tmp_path / "runs"):
        made = rows(folder)
        assert {line["data"] for line in made} == {CALLED}
        assert [line["_id"] for line in made] == ["0@0%", "1@100%"]
        length = max(line["prompt_tokens"] for line in made) + 4
        found[yaml.safe_load((folder / "config.yaml").read_text())["data"]["tokens"]] = length
    # A character is a token here, and so a line has 90: longer than model.limit, which is 900, and never cut.
    assert all(tokens - 92 <= length <= tokens for tokens, length in found.items())
    assert found.keys() == {1200, 2000}
    code, out, err = lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")
    assert code == 0, err
    assert (tmp_path / "report/depth_by_length_tiny_ruler6_generated.png").stat().st_size > 10_000
    for name in ("table1.md", "report.html"):
        assert f"on {CALLED}" in (tmp_path / "report" / name).read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("task=all", "data.tokens=700"),
            "record 0 of niah_single_1 needs data.tokens=942 or more with this model, not 700",
        ),
        (("task=hotpotqa",), "unknown dataset 'hotpotqa'"),
        (("task=fwe", "data.depths=[101]"), "data.depths=[101.0]: each is from 0 to 100, in percent"),
        (("task=fwe", "data.root=here"), "data.root=here: the records of RULER-6 are generated"),
    ],
)
def test_what_is_wrong_is_one_line(run, words, says, tmp_path):
    code, _, err = run("data=ruler", "method=baseline", *words)
    assert says in one_line(code, err)
    assert not folders(tmp_path / "runs")


def test_they_are_listed(lazybench):
    code, out, _ = lazybench("list")
    assert code == 0
    assert (
        "  ruler6                    niah_single_1, niah_multikey_2, niah_multikey_3, vt, cwe, fwe  [data=ruler]\n"
        in out
    )
