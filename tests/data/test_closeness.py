"""Measures of closeness: their ends, known values, and the order of real scripts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cptkit.data import closeness
from cptkit.data.documents import DataError

ENGLISH = "The document is saved in the current folder. Open the document again."
FRENCH = "Le document est enregistré dans le dossier. Ouvrez le document."
RUSSIAN = "Документ сохраняется в текущей папке. Откройте документ."
CHINESE = "文档保存在当前文件夹中。再次打开文档。"
text = st.text(st.characters(categories=["Lu", "Ll", "Lo", "Zs"]), min_size=4).filter(
    lambda t: len(closeness.letters(t)) > 3
)


@given(text, text)
def test_shares_lie_between_none_and_all_and_a_text_is_itself(a, b):
    for measure in (closeness.script_share, closeness.ngram_cosine):
        assert 0 <= measure(a, b) <= 1 + 1e-9
        assert measure(a, a) == pytest.approx(1)
    assert closeness.ngram_cosine(a, b) == pytest.approx(closeness.ngram_cosine(b, a))


def test_known_values():
    assert closeness.script_share("abc", "abд") == pytest.approx(2 / 3)
    assert closeness.word_share("the cat", "The dog and the cat") == pytest.approx(3 / 5)
    # "abcab": abc, bca, cab; "abc": abc -> 1 / sqrt(3)
    assert closeness.ngram_cosine("abcab", "abc") == pytest.approx(3**-0.5)
    assert closeness.ngram_cosine("abc", "xyz") == 0
    assert closeness.piece_share([1] * 99_999 + [2], [1, 1, 2, 3]) == 0.5  # piece 2 is too rare to count


def test_the_order_of_languages():
    for measure in (closeness.script_share, closeness.ngram_cosine, closeness.word_share):
        assert measure(ENGLISH, FRENCH) > measure(ENGLISH, RUSSIAN)
        assert measure(ENGLISH, FRENCH) > measure(ENGLISH, CHINESE)


def test_nothing_to_compare_is_an_error():
    for a, b in (("", "abc"), ("abc", "12 34")):
        with pytest.raises(DataError, match="cannot be compared"):
            closeness.script_share(a, b)
    with pytest.raises(DataError):
        closeness.piece_share([], [1])
