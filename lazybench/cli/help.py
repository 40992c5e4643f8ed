"""The help of a command that Hydra configures: its settings, with their comments in `conf/`."""

import textwrap
from collections.abc import Sequence
from inspect import getdoc

import yaml

from lazybench.cli.settings import config_file
from lazybench.config import CONF, DataConfig, ModelConfig

_FLAGS = """\
Choose with KEY=NAME, +experiment=NAME and +cluster=NAME, as lazybench list shows them; set with KEY=VALUE.
  -m, --multirun           run each of several values, method=lazyllm,baseline
  -cd, --config-dir FOLDER also choose from the configs in FOLDER; may be given several times
  --cfg job                print all settings, and run nothing"""


def text(command: str, words: Sequence[str]) -> str:
    """Return the help of a command, with the settings of the method that `words` choose, or of the default."""
    content = (CONF / f"{config_file(command)}.yaml").read_text("utf-8")
    config = yaml.safe_load(content)
    chosen = {key: name for entry in config["defaults"] if isinstance(entry, dict) for key, name in entry.items()}
    chosen |= dict(word.split("=", 1) for word in words if word.startswith("method="))
    sections = {"Settings": content.partition("_self_\n")[2].partition("\nhydra:\n")[0]}
    for group, schema in (("model", ModelConfig), ("data", DataConfig)):
        if group in chosen:
            attributes = getdoc(schema).partition("Attributes:\n")[2].replace("None", "null").replace("`", "")
            sections[f"Settings of the {group}, {group}.KEY"] = attributes
    if (file := CONF / "method" / f"{chosen['method']}.yaml").is_file():
        sections[f"Settings of method={file.stem}, method.KEY"] = file.read_text("utf-8")
    blocks = [f"{title}:\n{textwrap.indent(textwrap.dedent(body).strip(), '  ')}" for title, body in sections.items()]
    return "\n\n".join([config["hydra"]["help"]["template"].rstrip(), *blocks, _FLAGS])
