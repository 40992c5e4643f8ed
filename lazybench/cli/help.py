"""The help of a command that Hydra configures: its choices, and its settings as the files in `conf/` explain them."""

import textwrap
from collections.abc import Sequence
from inspect import getdoc

import yaml

from lazybench.config import CONF, DataConfig, ModelConfig

_FOOT = """\
Choose with KEY=NAME, +experiment=NAME and +cluster=NAME; set with KEY=VALUE.
  -m, --multirun           a run of each of several values, method=lazyllm,baseline
  -cd, --config-dir FOLDER also choose from the configs in FOLDER; may be given several times
  --cfg job                print all settings, and run nothing"""


def text(command: str, words: Sequence[str]) -> str:
    """What a command that Hydra configures takes; of the method that the `words` after it choose, its own settings."""
    content = (CONF / f"{'config' if command in ('run', 'plan') else command}.yaml").read_text("utf-8")
    config = yaml.safe_load(content)
    chosen = {key: of[key] for of in config["defaults"] if isinstance(of, dict) for key in of if " " not in key}
    groups = [*chosen, *(("experiment", "cluster") if command in ("run", "plan") else ())]
    names = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in groups}
    choices = [textwrap.fill(f"{of}: {', '.join(names[of])}", 110, subsequent_indent="  ") for of in groups]
    parts = [config["hydra"]["help"]["template"].rstrip(), _indented("Choices", "\n".join(choices))]
    parts.append(_indented("Settings", content.partition("_self_\n")[2].partition("\nhydra:\n")[0]))
    for group, kind in (("model", ModelConfig), ("data", DataConfig)):
        if group in chosen:
            said = getdoc(kind).partition("Attributes:\n")[2].replace("None", "null").replace("`", "")
            parts.append(_indented(f"Settings of the {group}, {group}.KEY", said))
    for word in [f"method={chosen['method']}", *words] if "method" in chosen else []:
        file = CONF / "method" / f"{word.removeprefix('method=')}.yaml"
        if word.startswith("method=") and file.is_file():
            own = _indented(f"Settings of {word}, method.KEY", file.read_text("utf-8"))
    return "\n\n".join([*parts, *([own] if "method" in chosen else []), _FOOT])


def _indented(title: str, content: str) -> str:
    return f"{title}:\n{textwrap.indent(textwrap.dedent(content).strip(), '  ')}"
