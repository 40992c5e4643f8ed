"""`scripts/second_turn.py`: the second question about a document."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from lazybench.methods.base import answer
from lazybench.run.timing import UNMODIFIED

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "second_turn.py"
NOTHING = "_target_: lazybench.methods.lazyllm.LazyLLM\nname: nothing_pruned\nschedule: '1:1.0'\n"
STRONG = "_target_: lazybench.methods.static_pruning.StaticPruning\nname: static_pruning\nlayer: 0\nkeep: 0.1\n"


@pytest.fixture
def second_turn(tiny_model, tmp_path, monkeypatch, capsys):
    """Run the script on the tiny model and generated records; returns its file and what it printed."""
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "nothing_pruned.yaml").write_text(NOTHING)
    (tmp_path / "method" / "strong.yaml").write_text(STRONG)

    def call(*methods: str, records: int = 2) -> tuple[pd.DataFrame, str]:
        words = [f"model.path={tiny_model}", "model.name=tiny", "model.chat=null", "model.limit=300"]
        words += ["data=sample", "data.tokens=512", "data.limit=2", "task=hotpotqa"]
        out = tmp_path / "second.csv"
        flags = ["--methods", *methods, "--config-dir", str(tmp_path), "--records", str(records), "--output", str(out)]
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *flags, *words])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return pd.read_csv(out), capsys.readouterr().out

    return call


@pytest.mark.slow
def test_kl_is_zero_unless_a_method_prunes(second_turn):
    rows, printed = second_turn("baseline", "nothing_pruned", "strong", "random_drop")
    assert rows.groupby("method").size().to_dict() == {
        "baseline": 2,
        "nothing_pruned": 2,
        "random_drop": 10,  # five seeds a record
        "strong": 2,
    }
    kl = rows.groupby("method")["kl"].mean()
    assert kl[["baseline", "nothing_pruned"]].tolist() == pytest.approx([0, 0], abs=1e-9)
    assert (kl[["strong", "random_drop"]] > 1e-4).all()
    computed = rows.groupby("method")["prompt_computed"].mean()
    assert computed["nothing_pruned"] == 1
    assert computed["strong"] < 0.5
    assert "strong" in printed


def test_the_second_answer_is_that_to_the_whole_conversation(model):
    SecondTurn = runpy.run_path(str(SCRIPT))["SecondTurn"]
    ids, first, question = torch.randint(5, 200, (1, 67), generator=torch.Generator().manual_seed(3)).split(
        [50, 7, 10], 1
    )
    decode = SecondTurn(model, 9, turns=(*first.split(1, dim=1), question))
    prompt = SimpleNamespace(ids=ids)
    tokens = answer(UNMODIFIED, prompt, decode, 0).tokens
    full = torch.cat([ids, first, question], dim=1)
    expected = model.generate(full, attention_mask=torch.ones_like(full), max_new_tokens=9, do_sample=False)
    assert tokens == expected[0, full.shape[1] :].tolist()
    assert decode.ttft_s > 0
