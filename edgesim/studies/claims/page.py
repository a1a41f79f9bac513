"""The page of claims: a table for each paper, a row for each claim, written for people to check."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from os.path import normpath

from edgesim.studies.claims.claim import Claim, NumberRule, RatioRule, Smaller
from edgesim.studies.claims.judge import Chapter, ClaimEffect, ClaimVerdict, Judged, verdicts

_MOST_SHOWN = 4  # effects of a claim; of more the two ends are shown
_HEADINGS = ("where", "claim", "status", "effect", "runs", "what explains it")
HEAD = """# Claims

What five papers claim, and what edgesim's runs say of each claim. This page is written by a command from run folders,
and from a file of results for runs whose folders are not kept; no verdict on it was written by hand:

<!-- not run: it takes minutes, and runs that take days -->
```sh
{command}
```

Each row names the command that makes its runs. **Status**:

- *reproduced*: a number is within the tolerance that the row names; an order or a side holds with its whole 95 %
  interval over seeds (Student's t; of ratios BCa), in every pair that the claim is about.
- *same order*: the same on the mean of every pair, but some interval reaches the other side, or there is one seed.
- *undecided*: for some pair the mean is on the other side, or outside the tolerance, and its interval allows both; or
  runs ended before they arrived, so that the size of a difference or ratio is not known.
- *refuted*: for some pair the whole interval is on the other side, or outside the tolerance. Intervals are not
  corrected for being many.
- *so far*: some of the pairs or numbers were not run.
- *smaller scale*: judged by a study with less data, fewer devices, rounds or seeds than the paper's, which says little.
- *recorded*: from results of earlier runs (revision and date, or the page that has them), not from runs that are there.
- *not run*, with the hours that the missing runs take in two processes of this host, where they can be estimated;
  *cannot be run here*, with the reason; *elsewhere*: by the command named.

In **effect** stand means over seeds, [their 95 % interval], what was claimed (of numbers) and how many seeds. Of
many pairs or numbers the two ends are shown.
"""


def page(chapters: Sequence[Chapter], command: str) -> str:
    """Return the page as Markdown. `command`: the one that writes it."""
    counts = verdicts(chapters)
    total = f"{sum(counts.values())} claims: " + ", ".join(f"{count} {name}" for name, count in counts.items())
    parts = [HEAD.format(command=command), f"{total}.\n"]
    for chapter in chapters:
        parts.append(f"## {chapter.file.paper}\n\n{chapter.file.source}\n")
        parts.append(_table([_HEADINGS, ["---"] * len(_HEADINGS), *(_row(each, chapter) for each in chapter.claims)]))
    return "\n".join(parts)


def status(judged: Judged) -> str:
    """Return the status of a claim as the page has it."""
    claim, found = judged.claim, judged.found
    if found.verdict is None:
        return _not_judged(claim, judged.hours)
    partly = " so far" if len(found.effects) < found.of else ""
    words = [f"**{found.verdict}**{_tolerance(claim, found.verdict)}{partly}"]
    if found.of > 1:
        words.append(f"{found.as_claimed} of {len(found.effects)} as claimed")
    if partly:
        words.append(f"{len(found.effects)} of {found.of} were run")
    if judged.smaller:
        words.append("smaller scale" + (f", by `{judged.test.column}`" if judged.test and judged.test.column else ""))
    if judged.made:
        words.append(f"runs of {'; '.join(judged.made)}")
    if judged.recorded:
        words.append(f"recorded: {'; '.join(judged.recorded)}")
    return "; ".join(words)


def _not_judged(claim: Claim, hours: float | None) -> str:
    if claim.cannot:
        return f"cannot be run here: {claim.cannot}"
    if claim.elsewhere:
        return f"elsewhere: `{claim.elsewhere}`"
    if claim.needs:
        return f"not run: needs {claim.needs}"
    return "not run" if hours is None else f"not run: needs about {float(f'{hours / 2:.2g}'):,g} hours on 2 cores"


def _tolerance(claim: Claim, verdict: ClaimVerdict) -> str:
    rule = claim.rule
    if verdict not in (ClaimVerdict.REPRODUCED, ClaimVerdict.REFUTED, ClaimVerdict.UNDECIDED) or rule is None:
        return ""
    within = getattr(rule, "within", None)
    if within is None:
        return ""
    shown = f"{within:.2g}" if not isinstance(rule, NumberRule | RatioRule) else f"{100 * within:.2g} %"
    return f" within {shown}" if within > 1e-6 else " exactly"


def _row(judged: Judged, chapter: Chapter) -> list[str]:
    claim = judged.claim
    test = judged.test or next(iter(claim.tests), None)
    return [
        f"{claim.where} <a id='{claim.id}'></a>",
        claim.says,
        status(judged),
        effects(judged.found.effects),
        "" if test is None else f"`{_command(claim, test, chapter)}`",
        claim.why,
    ]


def _command(claim: Claim, test: Smaller, chapter: Chapter) -> str:
    file = normpath(chapter.folder / test.study)
    labels = test.cell if claim.rule is None or test != claim.tests[0] else claim.rule.cell
    only = ",".join(f"{axis}={label}" for axis, label in labels.items())
    return f"edgesim study run {file} --size {test.size}{f' --only {only}' if only else ''}"


def effects(found: Sequence[ClaimEffect]) -> str:
    """Return effects in words: all of a few, of many the two ends."""
    if len(found) <= _MOST_SHOWN:
        return "<br>".join(map(_effect, found))
    ends = sorted(found, key=lambda each: each.value / each.claimed if _relative(each) else each.value)
    return f"from {_effect(ends[0])}<br>to {_effect(ends[-1])}"


def _relative(effect: ClaimEffect) -> bool:
    return math.isfinite(effect.claimed) and effect.claimed != 0


def _effect(effect: ClaimEffect) -> str:
    interval = (
        f" [{effect.low:.4g}, {effect.high:.4g}]" if math.isfinite(effect.low) and math.isfinite(effect.high) else ""
    )
    claimed = f", claimed {effect.claimed:.4g}" if math.isfinite(effect.claimed) else ""
    seeds = f"{len(effect.seeds)} seeds" if len(effect.seeds) > 1 else _seed(effect.seeds[0])
    more = "more than " if effect.bound and not interval else ""
    return f"{f'{effect.about}: ' if effect.about else ''}{more}{effect.value:.4g}{interval}{claimed} ({seeds})"


def _seed(label: str) -> str:
    """Return a seed, or those of which only the mean is known."""
    return f"mean of seeds {label}" if "-" in label else "1 seed"


def _table(rows: Iterable[Sequence[str]]) -> str:
    lines = (" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows)
    return "\n".join(f"| {line} |" for line in lines) + "\n"
