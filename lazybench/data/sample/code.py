"""lcc and repobench-p: Python code whose next line follows from a definition further up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lazybench.data.sample.draft import Compose, Draft, Stream, insert_at
from lazybench.data.sample.names import Names
from lazybench.data.sample.words import BANKS

_FILE_BLOCKS = 12  # definitions in one file of repobench-p
_GAP = "\n\n\n"
_IMPORT = "from dataclasses import dataclass"


@dataclass(frozen=True, slots=True)
class Subject:
    """A definition and the function that uses it: its `def` line and the one line of its body.

    `use` takes what the definition's name is prefixed with where it is used, e.g. `part_2.`.
    """

    definition: str
    use: Callable[[str], tuple[str, str]]


def lcc(rng: Random, position: float) -> Compose:
    """One file: definitions and the functions that use them; the last function lacks its body."""
    names = Names(rng)
    asked = _subject(rng, names)
    subjects = Stream(lambda: _subject(rng, names))
    head, answer = asked.use("")

    def compose(n: int) -> Draft:
        # Units are, in turn, a definition and its use.
        blocks: list[str] = []
        for i, subject in enumerate(subjects.take((n + 1) // 2)):
            blocks.append(subject.definition)
            if 2 * i + 1 < n:
                blocks.append("\n".join(subject.use("")))
        body = insert_at(blocks, position, asked.definition)
        return Draft(_GAP.join([_IMPORT, *body, head]) + "\n", (answer,))

    return compose


def repobench(rng: Random, position: float) -> Compose:
    """repobench-p: files of definitions, then the file that uses them; its last function lacks its body."""
    names = Names(rng)
    package = names.identifier()
    asked = _subject(rng, names)
    subjects = Stream(lambda: _subject(rng, names))

    def compose(n: int) -> Draft:
        # Units are, in turn, a definition and its use.
        taken = subjects.take((n + 1) // 2)
        defined = insert_at(taken, position, asked)
        files = [defined[i : i + _FILE_BLOCKS] for i in range(0, len(defined), _FILE_BLOCKS)]
        parts = [
            f"{package}/part_{i}.py\n" + _GAP.join([_IMPORT, *(subject.definition for subject in subjects_of_file)])
            for i, subjects_of_file in enumerate(files)
        ]
        where = {id(subject): f"part_{i}." for i, members in enumerate(files) for subject in members}
        uses = ["\n".join(subject.use(where[id(subject)])) for subject in taken[: n // 2]]
        head, answer = asked.use(where[id(asked)])
        modules = ", ".join(f"part_{i}" for i in range(len(files)))
        last = _GAP.join([f"from {package} import {modules}", *uses, head])
        return Draft("\n\n".join([*parts, f"{package}/uses.py\n{last}\n"]), (answer,))

    return compose


def _subject(rng: Random, names: Names) -> Subject:
    return rng.choice((_record, _limit, _measure))(rng, names.identifier())


def _record(rng: Random, name: str) -> Subject:
    fields = rng.sample(BANKS["noun"], 3)
    kind = "".join(part.title() for part in name.split("_"))
    typed = "".join(f"\n    {field}: {rng.choice(('int', 'str', 'float'))}" for field in fields)
    row = ", ".join(f"item.{field}" for field in fields)
    return Subject(
        f"@dataclass\nclass {kind}:{typed}",
        lambda prefix: (f"def {name}_row(item: {prefix}{kind}) -> list:", f"    return [{row}]"),
    )


def _limit(rng: Random, name: str) -> Subject:
    sign = rng.choice(("MAX", "MIN"))
    constant = f"{sign}_{name.upper()}"
    compare = "<=" if sign == "MAX" else ">="
    return Subject(
        f"{constant} = {rng.randrange(10, 5000)}",
        lambda prefix: (
            f"def check_{name}(value: int) -> bool:",
            f"    return value {compare} {prefix}{constant}",
        ),
    )


def _measure(rng: Random, name: str) -> Subject:
    first, second = rng.sample(BANKS["noun"], 2)
    scale = rng.randrange(2, 90)
    return Subject(
        f"def {name}({first}: int, {second}: int) -> int:\n    return {scale} * {first} + {second}",
        lambda prefix: (
            f"def twice_{name}(pair: tuple) -> int:",
            f"    return 2 * {prefix}{name}({first}=pair[0], {second}=pair[1])",
        ),
    )
