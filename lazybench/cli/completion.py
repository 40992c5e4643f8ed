"""Shell completion by Hydra, which `eval "$(lazybench -sc install=bash)"` turns on."""

import os
import re
import sys
from collections.abc import Sequence

import hydra

from lazybench.cli.settings import config_file
from lazybench.config import CONF


def main(words: Sequence[str], configured: Sequence[str], others: Sequence[str]) -> int:
    """Print the shell's completion function, or what can complete the line in `COMP_LINE`.

    Args:
        words: as Hydra's shell function gives them after `-sc`.
        configured: commands with settings of Hydra.
        others: the other commands.
    """
    name = "config"
    if words[:1] and words[0].startswith("query="):
        line = re.fullmatch(r"(\S+)\s+(\S+)\s+(.*)", os.environ.get("COMP_LINE", ""))
        if line is None or line[2] not in configured:
            print(*([] if line else [*configured, *others]))
            return 0
        name = config_file(line[2])
        os.environ["COMP_LINE"] = f"{line[1]} {line[3]}"  # Hydra knows no commands
    sys.argv = [sys.argv[0], "-sc", *words]
    hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(print)()
    return 0
