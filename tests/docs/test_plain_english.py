"""Pages that users read have short sentences, and the start page fits on one screen."""

import pytest
from places import ROOT
from plain_english import MAX_MEAN, MAX_WORDS, mean, sentences, too_long, words

# Those of reference that programs write, or that list every byte, are not read from top to bottom.
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(
        path
        for room in ("tutorial", "how-to", "explanation", "contributor")
        for path in (ROOT / "docs" / room).glob("*.md")
    ),
    *(ROOT / "docs" / "reference" / name for name in ("glossary.md", "parameters.md")),
    *ROOT.glob("examples/*/README.md"),
]


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_of_a_page_is_long_and_most_are_short(page):
    text = page.read_text(encoding="utf-8")
    assert too_long(text) == [], f"more than {MAX_WORDS} words"
    assert mean(text) <= MAX_MEAN


def test_the_start_page_fits_on_one_screen():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 500


def test_code_tables_and_headings_are_no_sentences():
    page = "# A heading\n\nOne `two three` four. Five\nsix.\n\n```sh\nfedcipher train\n```\n\n"
    page += "| seven | eight nine |\n|---|---|\n"
    assert sentences(page) == ["One `two three` four.", "Five six.", "seven", "eight nine"]
    assert [words(sentence) for sentence in sentences(page)] == [3, 2, 1, 2]
    assert mean(page) == 2.5
    assert too_long(f"{'word ' * 36}.") and not too_long(f"{'word ' * 35}.")
