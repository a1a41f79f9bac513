"""README and documentation speak in short sentences with a subject and a verb; the measure of that counts rightly."""

from __future__ import annotations

import pytest

from tests.conventions.prose import all_sentences, faults, has_verb, sentences, worst_pages

MOST_SHARE = {"semicolon": 0.05, "long": 0.05, "headless": 0.0}


@pytest.mark.parametrize("fault", MOST_SHARE)
def test_few_sentences_have_a_fault(fault: str) -> None:
    found = [sentence for sentence in all_sentences() if fault in faults(sentence)]
    places = "\n".join(f"{sentence.page}:{sentence.line} {sentence.text}" for sentence in found[:20])
    shown = "\n".join(worst_pages(10))
    assert len(found) <= MOST_SHARE[fault] * len(all_sentences()), f"{shown}\n{places}"


def texts(page: str) -> list[str]:
    """Return the sentences of a page."""
    return [sentence.text for sentence in sentences("page.md", page)]


def test_only_prose_is_read() -> None:
    page = """---
title: It has; a semicolon.
---
# A heading; not read.

One `code; span.` and [a link](https://a.org/x;y) end
here. Two ends.

<!-- a comment; left out -->
| a table; left | out |
|---|---|

```sh
a block; left out.
```

    indented; code.

![A picture; left out.](a.png)

- An item.
  It goes on.
- Another item.
"""
    assert texts(page) == ["One code and a link end here.", "Two ends.", "An item.", "It goes on.", "Another item."]


@pytest.mark.parametrize(
    "sentence",
    [
        "It takes 3.5 s, e.g. on a board of Li et al. (2021), see Fig. 2.",
        "J. Zhang wrote fluke 0.8.1.",
        "The file `a.toml` is there.",
    ],
)
def test_a_point_inside_a_sentence_ends_none(sentence: str) -> None:
    assert len(texts(sentence)) == 1


def test_a_name_in_small_letters_begins_a_sentence() -> None:
    assert texts("A run ends. edgesim writes (it is fast). Next!") == [
        "A run ends.",
        "edgesim writes (it is fast).",
        "Next!",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It ends; it begins.", ["semicolon"]),
        ("It takes " + "one more " * 15 + "word.", ["long"]),
        ("What is received is less.", ["headless"]),
        ("Who waits is late.", ["headless"]),
        ("Of ten devices two are late.", ["headless"]),
        ("Exact for one board.", ["headless"]),
        ("What is an interval?", []),
        ("- Exact for one board.", []),
        ("*Time against accuracy.*", []),
        ("**Published.** LeNet, 100 devices.", []),
        ("In a clone:", []),
        ("**What is drawn** is kept.", ["headless"]),
    ],
)
def test_faults(text: str, expected: list[str]) -> None:
    [sentence] = sentences("page.md", text)
    assert faults(sentence) == expected


def test_verbs_have_their_form_of_the_third_person() -> None:
    assert all(map(has_verb, ("It carries.", "It pushed.", "They wrote.", "It isn't.")))
    assert not has_verb("Three kinds, the strongest first")
