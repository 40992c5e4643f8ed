"""Generated records for retrieval: one fact among others of the same form and filler sentences.

Each fact of a record is of another property and place: models as small as SmolLM2-135M mix up facts of one property.
"""

from collections.abc import Iterator
from random import Random

from lazybench.data.record import Record
from lazybench.data.sample import SENTENCES, Words

COUNT = 100
# The facts of a record, one of which is asked for.
PROPERTIES = ("height", "weight", "age", "length", "speed", "depth")
_CHARACTERS = 4.9  # per token of these texts, by the tokenizers of SmolLM2 and Qwen2.5
_STEP = 37  # percent of the depth between the facts of two records; it has no common factor with 100


def read(dataset: str, root: str | None, *, seed: int, tokens: int) -> Iterator[Record]:
    """Yield `COUNT` records, one with its fact at each percent of the depth; the first ones are spread evenly, too.

    They are the same for every model. The facts of a record are evenly spread over its context. Contexts have the same
    number of characters, give or take a sentence: about `tokens` tokens, up to 4 % more.
    """
    for index in range(COUNT):
        rng = Random(f"{dataset}/{seed}/{index}")
        words, numbers = Words(rng), rng.sample(range(100, 1000), len(PROPERTIES))
        subjects = [f"{name} of {words.fill('{place}', {})}" for name in rng.sample(PROPERTIES, len(PROPERTIES))]
        facts = [f"The {subject} is {number}." for subject, number in zip(subjects, numbers, strict=True)]
        sentences: list[str] = []
        while len(" ".join([*facts, *sentences])) < tokens * _CHARACTERS:
            sentences.append(words.one_of(SENTENCES))
        depth, count = (_STEP * index % COUNT + 0.5) / COUNT, len(sentences) + 1
        depths = [(depth + number / len(facts)) % 1 for number in range(len(facts))]
        for depth, fact in sorted(zip(depths, facts, strict=True), reverse=True):
            sentences.insert(int(depth * count), fact)
        context = " ".join(sentences)
        yield Record(
            id=f"{index}",
            dataset=dataset,
            input=f"the {subjects[0]}",
            context=context,
            answers=(f"{numbers[0]}",),
            all_classes=None,
            length=len(context.split()),
            answer_prefix=f"The {subjects[0]} is",
        )
