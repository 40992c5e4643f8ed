"""`model.tokenizer`: a tokenizer for weights that come without one, as XGen's do."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from paper_tokenizers import gpt2_folder
from support import folders, one_line, save_tiny_model

from lazybench.config import CONF
from lazybench.model import xgen_tokenizer


@pytest.fixture
def bare(tmp_path):
    """A tiny model without a tokenizer, as XGen's weights come."""
    save_tiny_model(tmp_path / "bare", xgen_tokenizer.build(str(gpt2_folder())))
    for path in (tmp_path / "bare").glob("*token*"):
        path.unlink()
    return tmp_path / "bare"


def xgen_words(bare: Path, vocabulary: Path) -> list[str]:
    chosen = ["model=xgen_7b", f"model.path={bare}", "model.name=xgen_7b", "model.dtype=float32"]
    where = f"model.tokenizer.vocabulary={vocabulary}"
    return [*chosen, where, "method=baseline", "task=lcc", "data.limit=1", "data.tokens=512", "timing.warmup=0"]


@pytest.mark.slow
def test_where_the_vocabulary_lies_does_not_make_another_run(lazybench, bare, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "vocab.json").write_bytes((gpt2_folder() / "encoder.json").read_bytes())
    output = f"output={tmp_path / 'runs'}"
    assert lazybench("run", *xgen_words(bare, gpt2_folder()), output, "model.limit=400")[0] == 0
    code, out, err = lazybench("run", *xgen_words(bare, tmp_path / "elsewhere"), output, "model.limit=400")
    assert code == 0, err
    assert "finished earlier" in out
    (folder,) = folders(tmp_path / "runs")
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert settings["model"]["tokenizer"]["_target_"] == "lazybench.model.xgen_tokenizer.build"
    assert "+" in settings["weights"]
    assert lazybench("report", f"runs={tmp_path / 'runs'}", f"output={tmp_path / 'report'}")[0] == 0
    texts = [path.read_bytes() for path in (tmp_path / "report").rglob("*") if path.is_file()]
    assert not any(str(place).encode() in text for text in texts for place in (tmp_path, gpt2_folder()))


@pytest.mark.slow
def test_another_tokenizer_makes_another_run(lazybench, bare, tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "other")
    output = f"output={tmp_path / 'runs'}"
    words = [*xgen_words(bare, gpt2_folder()), output, "model.limit=400"]
    assert lazybench("run", *words)[0] == 0
    conf = yaml.safe_load((CONF / "model" / "xgen_7b.yaml").read_text())
    where = {"pretrained_model_name_or_path": str(tmp_path / "other")}
    conf["tokenizer"] = {"_target_": "transformers.AutoTokenizer.from_pretrained", **where}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(yaml.safe_dump(conf))
    words = [word for word in words if not word.startswith(("model=", "model.tokenizer"))]
    code, _, err = lazybench("run", "--config-dir", str(tmp_path), "model=mine", *words)
    assert code == 0, err
    assert len(folders(tmp_path / "runs")) == 2


def test_a_vocabulary_that_is_not_there_is_one_line(bare, lazybench, tmp_path):
    code, _, err = lazybench("run", *xgen_words(bare, tmp_path / "nowhere"), f"output={tmp_path / 'runs'}")
    assert f"model.tokenizer.vocabulary={tmp_path / 'nowhere'}: there is no such folder" in one_line(code, err)
    assert not (tmp_path / "runs").exists()


def test_runs_without_such_a_tokenizer_are_what_they_were(run, tmp_path):
    """Older runs lack the setting: `plan` and `run` must still know them."""
    assert run("method=baseline")[0] == 0
    (folder,) = folders(tmp_path / "runs")
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert "tokenizer" not in settings["model"]
    assert "+" not in settings["weights"]
