"""The help of a command that Hydra configures: its choices, and its settings with their comments in `conf/`."""

import textwrap
from collections.abc import Sequence
from inspect import getdoc

import yaml

from lazybench.cli.settings import config_file
from lazybench.config import CONF, DataConfig, ModelConfig

_FLAGS = """\
Choose with KEY=NAME, +experiment=NAME and +cluster=NAME; set with KEY=VALUE.
  -m, --multirun           run each of several values, method=lazyllm,baseline
  -cd, --config-dir FOLDER also choose from the configs in FOLDER; may be given several times
  --cfg job                print all settings, and run nothing"""


def text(command: str, words: Sequence[str]) -> str:
    """Return the help of a command; of the method that `words` choose, or the default, also its settings."""
    content = (CONF / f"{config_file(command)}.yaml").read_text("utf-8")
    config = yaml.safe_load(content)
    defaults = {key: name for entry in config["defaults"] if isinstance(entry, dict) for key, name in entry.items()}
    groups = [*defaults, *(("experiment", "cluster") if command in ("run", "plan") else ())]
    names = {group: ", ".join(sorted(path.stem for path in (CONF / group).glob("*.yaml"))) for group in groups}
    choices = [textwrap.fill(f"{group}: {names[group]}", 110, subsequent_indent="  ") for group in groups]
    sections = [config["hydra"]["help"]["template"].rstrip(), _section("Choices", "\n".join(choices))]
    sections.append(_section("Settings", content.partition("_self_\n")[2].partition("\nhydra:\n")[0]))
    for group, schema in (("model", ModelConfig), ("data", DataConfig)):
        if group in defaults:
            attributes = getdoc(schema).partition("Attributes:\n")[2].replace("None", "null").replace("`", "")
            sections.append(_section(f"Settings of the {group}, {group}.KEY", attributes))
    chosen = defaults | dict(word.split("=", 1) for word in words if word.startswith("method="))
    if (file := CONF / "method" / f"{chosen['method']}.yaml").is_file():
        sections.append(_section(f"Settings of method={file.stem}, method.KEY", file.read_text("utf-8")))
    return "\n\n".join([*sections, _FLAGS])


def _section(title: str, content: str) -> str:
    return f"{title}:\n{textwrap.indent(textwrap.dedent(content).strip(), '  ')}"
