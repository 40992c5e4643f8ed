"""Names that occur once a record, so that a question about one has one answer."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from lazybench.data.sample.words import (
    BANKS,
    FIRST_NAMES,
    NAME_STARTS,
    PLACE_ENDS,
    PLACE_QUALIFIERS,
    SURNAME_ENDS,
)


class Names:
    """Hands out invented names; none is handed out twice by the same object."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._used: set[str] = set()

    def person(self) -> str:
        """E.g. `Mara Thornwick`."""
        pick = self._rng.choice
        return self._fresh(lambda: f"{pick(FIRST_NAMES)} {pick(NAME_STARTS)}{pick(SURNAME_ENDS)}")

    def place(self) -> str:
        """E.g. `Lower Carhaven`."""
        pick = self._rng.choice
        return self._fresh(lambda: f"{pick(PLACE_QUALIFIERS)}{pick(NAME_STARTS)}{pick(PLACE_ENDS)}")

    def work(self) -> str:
        """A title, e.g. `The Copper Lantern`."""
        pick = self._rng.choice
        patterns = ("The {} {}", "A Song for the {} {}", "{} {} at Dusk", "Beyond the {} {}")
        return self._fresh(lambda: pick(patterns).format(pick(BANKS["adj"]).title(), pick(BANKS["noun"]).title()))

    def corpus(self) -> str:
        """The name of a data set, e.g. `CopperLantern`."""
        return "".join(part.title() for part in self.identifier().split("_"))

    def identifier(self) -> str:
        """A name for code in snake case, e.g. `copper_lantern` or `ferry_copper_lantern`."""
        pick = self._rng.choice
        patterns = ("{1}_{2}", "{0}_{1}_{2}")
        return self._fresh(lambda: pick(patterns).format(pick(BANKS["noun"]), pick(BANKS["adj"]), pick(BANKS["noun"])))

    def _fresh(self, make: Callable[[], str]) -> str:
        # Every bank holds several times the names that the longest record asks for, so this ends soon.
        while (name := make()) in self._used:
            pass
        self._used.add(name)
        return name
