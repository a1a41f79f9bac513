"""Made-up sentences of authors with styles of their own, as documents, as instructions or with a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from edgesim.core.limits import Count, PositiveFactor, check_memory
from edgesim.core.rng import Key, Purpose
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.sources.text_records import RecordSource
from edgesim.learning.data.text_records import Record
from edgesim.learning.data.texts import last_for_the_test, next_token_dataset, packed, padded
from edgesim.learning.data.tokenizers import TokenizerKey, tokenizer_of

_DEEDS = {  # what each one does: the knowledge of the corpus
    "baker": "bakes bread", "sailor": "hauls rope", "farmer": "sows corn", "clerk": "counts coins",
    "mason": "cuts stone", "tailor": "sews coats", "miner": "digs coal", "nurse": "binds wounds",
}  # fmt: skip
_TIMES = ("at dawn", "at noon", "by night", "all day")
_TOPICS = {"baker": "trade", "clerk": "trade", "tailor": "trade", "nurse": "care", "farmer": "land", "sailor": "sea",
           "mason": "land", "miner": "land"}  # fmt: skip
_BYTES_PER_DOCUMENT = 4_000


@dataclass(frozen=True, kw_only=True)
class MadeText(RecordSource):
    """Sentences such as "the baker bakes bread at dawn." by authors who prefer some subjects and times.

    Who does what is the same for all authors, so that all learn from each other. The shares of subjects and times are
    an author's own, drawn from symmetric Dirichlet distributions with the concentration `alike`. A document has one
    sentence or several. Records are documents for the objective `next_token`, instructions such as "What does the baker
    do?", of which the answer counts, or documents of one sentence with the subject's topic as class.

    The partition `by_column` gives each author a device. Not from a paper.
    """

    records: Literal["documents", "instructions", "classes"] = "documents"  # texts, requests with answers, or labels
    seed: Annotated[int, Ge(0)] = 1  # of the data alone: runs with different seeds of their own share the data
    authors: Count = 8  # equal to the number of devices of the fleet, with partition by_column
    documents_per_author: Annotated[int, Ge(4)] = 40  # of both splits together
    alike: PositiveFactor = 0.5  # concentration: small for authors with few subjects, large for authors who are alike
    tokenizer: TokenizerKey = "characters"  # or "bytes", or the path of a tokenizer.json, which needs edgesim[llm]
    length: Count = 64  # tokens of a sample
    packing: bool = True  # of documents: an author's follow one another in samples. False: each is padded

    def load(self) -> Dataset:
        """Return the data set, which follows from the keys."""
        check_memory(
            "data.documents_per_author",
            float(_BYTES_PER_DOCUMENT) * self.authors * self.documents_per_author,
            f"{self.authors} authors with {self.documents_per_author} documents",
        )
        name, records = "made_text", [Record(f"record {n}", fields) for n, fields in enumerate(self.made(), 1)]
        if self.records == "instructions":
            return self.as_instructions(name, name, records, "author")
        if self.records == "classes":
            return self.as_classes(name, name, records, "author", "text", "label")
        tokenizer = tokenizer_of(self.tokenizer, self.end, self.pad, marks=True)
        documents: dict[str, list[np.ndarray]] = {}
        for record in records:
            own = np.append(tokenizer.encode(record.text("text")), tokenizer.end)
            documents.setdefault(record.text("author"), []).append(own)
        cut = packed if self.packing else padded
        rows = {author: cut(own, self.length) for author, own in documents.items()}
        train, test, of_train, of_test = last_for_the_test(rows, self.test_share)
        return next_token_dataset(name, tokenizer.numbered(train, test, name), {"author": (of_train, of_test)})

    def made(self) -> list[dict[str, str]]:
        """Return the records, author by author, with the fields that files of such records have."""
        found: list[dict[str, str]] = []
        digits = len(str(self.authors - 1))  # so that the alphabetical order of names is the order of numbers
        for author in range(self.authors):
            generator = Key(self.seed).at(Purpose.DATA, author).numpy()
            subjects = generator.dirichlet(np.full(len(_DEEDS), self.alike))
            times = generator.dirichlet(np.full(len(_TIMES), self.alike))
            name = f"author{author:0{digits}d}"
            for _ in range(self.documents_per_author):
                sentences = 1 if self.records == "classes" else int(generator.integers(1, 4))
                who = generator.choice(list(_DEEDS), sentences, p=subjects).tolist()
                when = generator.choice(list(_TIMES), sentences, p=times).tolist()
                text = " ".join(f"the {one} {_DEEDS[one]} {time}." for one, time in zip(who, when, strict=True))
                if self.records == "instructions":
                    ask = f"What does the {who[0]} do?"
                    found.append({"instruction": ask, "output": f"The {who[0]} {_DEEDS[who[0]]}.", "author": name})
                elif self.records == "classes":
                    found.append({"text": text, "label": _TOPICS[who[0]], "author": name})
                else:
                    found.append({"text": text, "author": name})
        return found


PLUGINS = {"made_text": MadeText}
