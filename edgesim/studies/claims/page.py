"""The page of claims: a table for each paper and a row for each claim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os.path import normpath

from edgesim.studies.claims.claim import NumberRule, OrderRule, RatioRule
from edgesim.studies.claims.judge import Chapter, ClaimEffect, ClaimVerdict, Judged, verdicts

_MOST_SHOWN = 4  # effects of a claim. Of more effects only the smallest and the largest are shown
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
    """Return the page as Markdown. `command`: the command line that writes the page."""
    counts = verdicts(chapters)
    total = f"{sum(counts.values())} claims: " + ", ".join(f"{count} {name}" for name, count in counts.items())
    parts = [HEAD.format(command=command), f"{total}.\n"]
    for chapter in chapters:
        parts.append(f"## {chapter.file.paper}\n\n{chapter.file.source}\n")
        rows: list[Sequence[str]] = [_HEADINGS, ["---"] * len(_HEADINGS)]
        for judged in chapter.claims:
            claim = judged.claim
            test = judged.test or next(iter(claim.tests), None)
            command = ""
            if test is not None:
                file = normpath(chapter.folder / test.study)
                labels = test.cell if claim.rule is None or test != claim.tests[0] else claim.rule.cell
                only = ",".join(f"{axis}={label}" for axis, label in labels.items())
                command = f"`edgesim study run {file} --size {test.size}{f' --only {only}' if only else ''}`"
            where = f"{claim.where} <a id='{claim.id}'></a>"
            rows.append((where, claim.says, status(judged), effects(judged.found.effects), command, claim.why))
        lines = (" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows)
        parts.append("\n".join(f"| {line} |" for line in lines) + "\n")
    return "\n".join(parts)


def status(judged: Judged) -> str:
    """Return the status of a claim for the page."""
    claim, found = judged.claim, judged.found
    if found.verdict is None:
        if claim.cannot:
            return f"cannot be run here: {claim.cannot}"
        if claim.elsewhere:
            return f"elsewhere: `{claim.elsewhere}`"
        if claim.needs:
            return f"not run: needs {claim.needs}"
        hours = judged.hours
        return "not run" if hours is None else f"not run: needs about {float(f'{hours / 2:.2g}'):,g} hours on 2 cores"
    tolerance, rule = "", claim.rule
    within = None if rule is None or isinstance(rule, OrderRule) else rule.within
    if within is not None and found.verdict != ClaimVerdict.ORDER:
        shown = f"{100 * within:.2g} %" if isinstance(rule, NumberRule | RatioRule) else f"{within:.2g}"
        tolerance = f" within {shown}" if within > 1e-6 else " exactly"
    partly = " so far" if len(found.effects) < found.of else ""
    words = [f"**{found.verdict}**{tolerance}{partly}"]
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


def effects(found: Sequence[ClaimEffect]) -> str:
    """Return all effects in words, or the smallest and the largest of many."""
    if len(found) <= _MOST_SHOWN:
        return "<br>".join(map(_effect, found))
    ends = sorted(
        found, key=lambda each: each.value / (each.claimed if math.isfinite(each.claimed) and each.claimed != 0 else 1)
    )
    return f"from {_effect(ends[0])}<br>to {_effect(ends[-1])}"


def _effect(effect: ClaimEffect) -> str:
    interval = (
        f" [{effect.low:.4g}, {effect.high:.4g}]" if math.isfinite(effect.low) and math.isfinite(effect.high) else ""
    )
    claimed = f", claimed {effect.claimed:.4g}" if math.isfinite(effect.claimed) else ""
    seeds = f"{len(effect.seeds)} seeds"
    if len(effect.seeds) == 1:  # a range stands for seeds of which only the mean is known
        seeds = f"mean of seeds {effect.seeds[0]}" if "-" in effect.seeds[0] else "1 seed"
    more = "more than " if effect.bound and not interval else ""
    return f"{f'{effect.about}: ' if effect.about else ''}{more}{effect.value:.4g}{interval}{claimed} ({seeds})"
