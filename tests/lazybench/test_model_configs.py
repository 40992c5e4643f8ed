"""Each model of `conf/model`, small and with random weights, from a record to its score."""

import json

import pytest
import yaml
from support import byte_tokenizer, folders, rows

from lazybench.config import CONF

CONFIGS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((CONF / "model").glob("*.yaml"))}
OUTLINED = [name for name, config in CONFIGS.items() if "path" in config and "outline" in config]
SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
# Enough layers for a full-attention layer before the last, and small values of other sizes.
SIZES = {
    "gemma3_4b": {"num_hidden_layers": 8},
    "gpt_oss_20b": {"num_hidden_layers": 4, "num_local_experts": 8},
    "qwen3_5_9b": {"num_hidden_layers": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
}
HYBRIDS = ("qwen3_5_9b",)
TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    """A tokenizer of bytes with a chat template."""
    folder, tokenizer = tmp_path_factory.mktemp("tokenizer"), byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", OUTLINED)
def test_a_model_of_each_outline_goes_the_whole_way(lazybench, tokenizer_folder, tmp_path, name):
    outline = CONFIGS[name]["outline"]
    heads = outline.get("head_dim", outline["hidden_size"] // outline["num_attention_heads"])
    small = SMALL | {"head_dim": heads} | SIZES.get(name, {})
    sizes = [f"++model.outline.{key}={value}" for key, value in small.items()]
    method = "static_pruning" if name in HYBRIDS else "lazyllm"
    timed = f"timing.per_dataset={int(name in HYBRIDS)}"
    words = (f"model={name}", f"method=baseline,{method}", *sizes, "model.shape=${model.outline}", "task=2wikimqa")
    paths = (f"model.path={tokenizer_folder}", f"output={tmp_path}", "timing.warmup=0")
    tokens = max(512, 5 * outline.get("sliding_window", 0) // 4)  # a prompt that no window holds
    code, _, err = lazybench(
        *("run", "-m", *words, *paths, "model.dtype=float32", timed),
        *("trace=true", "data.limit=1", f"data.tokens={tokens}"),
    )
    assert code == 0, err
    folder_of = {folder.parent.name: folder for folder in folders(tmp_path)}
    assert folder_of.keys() == {"baseline", method}
    for folder in folder_of.values():
        (row,) = rows(folder)
        assert row.get("error") is None
        assert row["prompt_tokens"] > tokens * 0.9
        assert row["new_tokens"] > 0
        (traced,) = map(json.loads, (folder / "traces.jsonl").read_text().splitlines())
        assert traced.get("error") is None
        assert (traced["kl"] == 0) == (folder is folder_of["baseline"])
        assert max(traced.get("computed", [[0]])[0]) < 1
        assert json.loads((folder / "scores.json").read_text())["datasets"]["2wikimqa"]["score"] is not None
