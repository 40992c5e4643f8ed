"""What the tests of bad command lines share: strategies that make such lines, and the check of what they cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lazybench.config import CONF
from lazybench.data.facts import ALL, load_facts, tasks

Line = tuple[str, ...]

GROUPS = {group: [path.stem for path in (CONF / group).glob("*.yaml")] for group in ("method", "model", "data")}
TASKS = [ALL, *tasks(), *load_facts()]
INTEGERS = ("model.limit", "data.seed", "data.tokens", "timing.warmup")
FLAGS = ("timing.paired", "trace", "model.trust_remote_code")
TEXTS = ("task", "output", "model.name", "model.path", "model.dtype", "model.attention", "model.device", "data.source")
SETTINGS = (*INTEGERS, *FLAGS, *TEXTS, "data.limit", "model.chat", "model.revision", "data.root", "model.remove")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_JARGON = re.compile(
    r"Exception|OmegaConf|DictConfig|ListConfig|NoneType|Traceback|\$VALUE|full_key|object_type|hydra\.cc|<class|"
    r"defaults list|Lexer|viable alternative|positional argument|usage:"
)

# A name that nothing has.
names = st.text(LETTERS, min_size=3, max_size=12).map(lambda name: f"{name}zq")


@st.composite
def misspelt(draw: st.DrawFn, words: Sequence[str]) -> str:
    """One of `words` with a slip of the fingers, which makes none of the others of it."""
    word, letter = draw(st.sampled_from(words)), draw(st.sampled_from(LETTERS))
    place = draw(st.integers(0, len(word) - 1))
    rest = draw(st.sampled_from([word[place + 1 :], letter + word[place:], letter + word[place + 1 :]]))
    made = word[:place] + rest
    assume(made not in words and re.fullmatch(r"[a-z][a-z0-9_.-]*[a-z0-9]", made) and ".." not in made)
    return made


def words(*parts: st.SearchStrategy[str] | Sequence[str] | str) -> st.SearchStrategy[Line]:
    """Lines of one word that is put together of parts: strategies, lists to choose from, and fixed text."""
    drawn = [st.just(part) if isinstance(part, str) else part for part in parts]
    drawn = [part if isinstance(part, st.SearchStrategy) else st.sampled_from(list(part)) for part in drawn]
    return st.tuples(*drawn).map(lambda found: ("".join(found),))


def lines(*given: Line) -> st.SearchStrategy[Line]:
    """One of these lines."""
    return st.sampled_from(given)


def check(line: Line, code: object, out: str, err: str, cwd: Path) -> str:
    """See that a bad line cost one line of plain words and exit code 2, and wrote nothing; returns what it says."""
    shown = f"{line!r}\n{err}"
    assert code == 2, shown
    said = [text for text in err.splitlines() if text.strip()]
    assert len(said) == 1, shown
    assert said[0].startswith("lazybench: "), shown
    assert 20 < len(said[0]) < 700, shown
    assert said[0].isprintable(), shown
    asked = " ".join(line)
    assert not [found for found in _JARGON.findall(said[0]) if found not in asked], shown
    # What the command is about is said before anything slow is imported, and so before its settings are tried.
    assert re.fullmatch(r"((model|checking|reading) [^\n]*\n)?", out), (shown, out)
    assert not any(cwd.iterdir()), shown
    return said[0]


def check_each(bad: st.SearchStrategy[Line], call: Callable[..., tuple[int, str, str]], cwd: Path, count: int) -> None:
    """Check `count` lines of a strategy."""

    @settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(bad)
    def costs_one_line(line: Line) -> None:
        check(line, *call(*line), cwd)

    costs_one_line()
