"""RULER's wording, typed from github.com/NVIDIA/RULER (Apache-2.0), and its prompts made of it once more."""

import re

# scripts/data/synthetic/constants.py: template, answer_prefix and tokens_to_generate.
_NIAH = (
    "Some special magic {type_needle_v} are hidden within the following text. Make sure to memorize it. I will quiz "
    "you about the {type_needle_v} afterwards.\n{context}\nWhat are all the special magic {type_needle_v} for {query} "
    "mentioned in the provided text?",
    " The special magic {type_needle_v} for {query} mentioned in the provided text are",
)
_VT = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find "
    "all variables that are assigned the value {query} in the text above.",
    " Answer: According to the chain(s) of variable assignment in the text above, {num_v} variables are assigned the "
    "value {query}, they are: ",
)
_CWE = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
    "appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list?",
    " Answer: The top 10 words that appear most often in the list are:",
)
_FWE = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
    "appeared coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What "
    "are the three most frequently appeared words in the above coded text?",
    " Answer: According to the coded text above, the three most frequently appeared words are:",
)
NEW_TOKENS = {"niah_single_1": 128, "niah_multikey_2": 128, "niah_multikey_3": 128, "vt": 30, "cwe": 120, "fwe": 50}
DATASETS = tuple(NEW_TOKENS)
# scripts/data/synthetic/niah.py: the needle and the noise; scripts/synthetic.yaml: what a needle's value is.
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
KINDS = {"niah_single_1": "numbers", "niah_multikey_2": "numbers", "niah_multikey_3": "uuids"}


def parts(dataset: str, query: str) -> tuple[str, str, str]:
    """Return the prompt before and after a record's text, and the answer prefix after the chat wrapper."""
    if dataset in KINDS:
        # niah.py, generate_input_output: one query and one value.
        both = (text.replace("Some", "A").replace("are all", "is").replace("are", "is") for text in _NIAH)
        template, prefix = (text.replace("{type_needle_v}", KINDS[dataset].removesuffix("s")) for text in both)
    else:
        template, prefix = {"vt": _VT, "cwe": _CWE, "fwe": _FWE}[dataset]
    before, after = template.split("{context}")
    return before, after.format(query=query), prefix.format(query=query, num_v=5)


def full_prompt(dataset: str, context: str, query: str) -> str:
    """Return the prompt without a chat wrapper."""
    before, after, prefix = parts(dataset, query)
    return before + context + after + prefix


def tokens(text: str) -> int:
    """A stand-in tokenizer: pieces of words, and signs."""
    return len(re.findall(r"\w{1,5}|[^\w\s]|\n", text))
