"""`model.outline`: a model's size, for plans where its own config.json is out of reach."""

from __future__ import annotations

import pytest
import yaml
from support import folders

from lazybench.config import CONF, ModelConfig
from lazybench.data import hub
from lazybench.model.loading import load_skeleton


@pytest.mark.parametrize(
    ("name", "weights", "positions"), [("llama2_7b", 6_738_415_616, 4096), ("xgen_7b", 6_895_702_016, 8192)]
)
def test_a_models_size_is_known_where_the_hub_is_not(name, weights, positions, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    hub.unreachable.cache_clear()
    try:
        model = load_skeleton(ModelConfig(**yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text())))
    finally:
        hub.unreachable.cache_clear()
    assert sum(weight.numel() for weight in model.parameters()) == weights
    assert model.config.max_position_embeddings == positions


def test_the_checkpoints_own_config_comes_before_the_outline(tiny_model):
    outline = {"model_type": "llama", "num_hidden_layers": 7}
    config = ModelConfig(name="x", path=str(tiny_model), limit=100, outline=outline)
    assert load_skeleton(config).config.num_hidden_layers == 4


def test_an_outline_does_not_make_another_run(run, tmp_path):
    assert run("method=baseline", "data.limit=1")[0] == 0
    words = ("method=baseline", "data.limit=1", "+model.outline={model_type:llama,num_hidden_layers:7}")
    assert "1/1" in run(*words, command="plan")[1]
    assert "finished earlier" in run(*words)[1]
    (folder,) = folders(tmp_path / "runs")
    assert "outline" not in (folder / "config.yaml").read_text()
