"""RULER's score against another reading of the original's text."""

from hypothesis import example, given
from hypothesis import strategies as st

from lazybench import metrics

words = st.text(st.characters(exclude_characters="\n"), max_size=4) | st.sampled_from(["Wren", "wren-song", "41", "İ"])
answers = st.lists(words | st.sampled_from([" ", "\t", "\x00", "\n", ", "]), max_size=12).map("".join)


def read_anew(prediction, references):
    """scripts/eval/evaluate.py, `postprocess_pred`, and scripts/eval/synthetic/constants.py, `string_match_all`.

    White space around a prediction goes, its control characters become line breaks, the white space that this leaves
    around it goes; the score is the share of references found in it, all in lower case.
    """
    bare = "".join("\n" if ord(letter) < 32 else letter for letter in prediction.strip()).strip().lower()
    return len([reference for reference in references if bare.find(reference.lower()) >= 0]) / len(references)


@given(answers, st.lists(words, min_size=1, max_size=5))
@example("The answer is: WREN,\x0041.", ["wren", "41", "42"])
@example("\t a\tb ", ["a\tb", "a"])
def test_it_is_the_share_of_references_in_the_prediction(prediction, references):
    score = metrics.get("string_match_all")
    assert score(prediction, "\n".join(references), None) == read_anew(prediction, references)


def test_an_answer_that_names_two_of_three_has_two_thirds():
    assert metrics.get("string_match_all")(" ABCDE, fghij and ABC", "ABCDE\nFGHIJ\nKLMNO", None) == 2 / 3
