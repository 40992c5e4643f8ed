"""`lazybench plan`: what is done, and about how long the rest takes on an A100."""

import pytest
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from support import LAZY, folders

from lazybench.data import dataset_configs
from lazybench.jobs import plan as planning

QUICK = ("timing.per_dataset=0",)


def cells(out: str) -> list[list[str]]:
    """The words of each row of the table."""
    lines = out[out.index("method ") :].splitlines()
    return [line.split() for line in lines[2 : lines.index("")]]


@pytest.fixture
def short_longbench():
    """Plans are of answers as long as LongBench's."""
    return dataset_configs._longbench()


@pytest.fixture
def plan(run):
    def call(*words: str) -> str:
        code, out, err = run(*words, command="plan")
        assert code == 0, err
        return out

    return call


def test_a_plan_runs_nothing_and_counts_done_records(run, plan, tmp_path):
    assert [row[-3] for row in cells(plan(*LAZY, *QUICK))] == ["0/2"]
    assert not (tmp_path / "runs").exists()
    run(*LAZY, *QUICK)
    run(*LAZY, *QUICK, "task=hotpotqa", "shard=1/2")
    out = plan(*QUICK, "method=lazyllm", "method.schedule=[1:0.6],[1:0.4]", "task=2wikimqa,hotpotqa")
    assert "4 jobs, 3 of them with records to run" in out
    assert sorted(row[-3] for row in cells(out)) == ["0/2", "0/2", "1/2", "2/2"]
    assert [row[-3] for row in cells(plan(*LAZY, *QUICK, "task=hotpotqa", "shard=1/2,2/2"))] == ["1/1", "0/1"]
    for folder in folders(tmp_path / "runs"):
        folder.rename(folder.with_name(folder.name[::-1]))  # as of another model, so that it would start again
    assert cells(plan(*LAZY, *QUICK))[0][-3] == "0/2"


def test_the_length_of_prompts_is_that_of_their_tokens(plan, monkeypatch):
    monkeypatch.setattr(planning, "a100_pace", lambda *_: planning.Pace(36, 0, 0))
    monkeypatch.setattr(planning, "unmodified_operations", lambda model, lengths: sum(lengths))

    def hours(*words: str) -> float:
        sizes = ("method=baseline", "data.limit=2", "data.tokens=2000", "model.limit=4000")
        return float(cells(plan(*sizes, *words))[0][-2])

    untimed = hours(*QUICK)
    # By tokens as English has them: the tiny model has one a letter.
    assert 2 * 300 < 100 * untimed < 2 * 2000
    # Each record is timed twice, and a pass that is not timed comes before each.
    assert hours("timing.warmup=0") == pytest.approx(5 * untimed, rel=0.02)
    # Two rounds of one of the two records.
    assert hours("timing.warmup=2") == pytest.approx(6 * untimed, rel=0.02)


def test_a_plan_of_a_7b_model(plan):
    shape = (
        "{model_type:llama,vocab_size:32000,hidden_size:4096,intermediate_size:11008,num_hidden_layers:32,"
        "num_attention_heads:32,num_key_value_heads:32}"
    )
    words = (f"+model.shape={shape}", "model.limit=1500", "model.dtype=bfloat16", "task=gov_report", "data.limit=50")
    (row,) = cells(plan(*LAZY, *words))
    # 12 of 50 answers of 512 tokens are timed, the method's once and the unmodified model's twice, at 29 ms per token;
    # in batches all take about 1 ms per token. 13.5 GB of weights, and half a megabyte of cache per token.
    assert 0.15 <= float(row[-2]) < 0.25
    assert 14 < float(row[-1]) < 17


@pytest.mark.slow
def test_a_plan_needs_nothing_of_the_hub_and_no_launcher(lazybench, offline, tmp_path, monkeypatch):
    Plugins.instance()
    monkeypatch.delitem(ConfigStore.instance().repo["hydra"]["launcher"], "submitit_slurm.yaml", raising=False)
    words = ["+experiment=table1", "method=baseline,lazyllm", "+cluster=slurm_a100", "hydra.launcher.account=mine"]
    code, out, err = lazybench("plan", *words, f"output={tmp_path / 'runs'}")
    assert (code, err) == (0, "")
    assert "pip install 'PATH_TO_THIS_CHECKOUT[submitit]'" in out
    lines = [(row[-6], row[-3]) for row in cells(out)]
    assert lines == [("llama2_7b", "0/3750")] * 2 + [("xgen_7b", "0/3750")] * 2
    assert all(1 < float(row[-2]) < 12 and 15 < float(row[-1]) < 22 for row in cells(out))
    assert sum(float(row[-2]) for row in cells(out)) < 16
    for missing in ("model.path=meta-llama/Llama-2-7b-chat-hf", "data.zip of THUDM/LongBench"):
        assert missing in out
    assert not (tmp_path / "runs").exists()


def test_a_plan_of_a_model_whose_size_is_out_of_reach(run, offline):
    code, out, err = run(*LAZY, "model.path=some/tiny", command="plan")
    assert (code, err) == (0, "")
    assert cells(out)[0][-3:] == ["0/2", "?", "?"]
    assert "on this machine the run would fail: model.path=some/tiny cannot be loaded: HF_HUB_OFFLINE=1 is set" in out
