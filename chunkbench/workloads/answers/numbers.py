"""What a model still finds with each choice of heads: counts over all contexts of a point."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from chunkbench.analysis.derive import Row
from chunkbench.workloads.answers.result import AnswersResult


@dataclass(frozen=True)
class AnswersNumbers:
    """Of one choice at one point."""

    found: int
    """Needles, of those that the model finds where all heads keep everything."""
    findable: int
    needles: int
    """All that were hidden."""
    by_depth: tuple[float | None, ...]
    """[needle] share found of the findable ones; None: the model finds none at this depth."""
    agreement: float
    lowest_agreement: float
    highest_agreement: float
    deviation: float
    kv_share: float
    """Bytes of K, V and sums over those of the full cache."""

    @property
    def share(self) -> float | None:
        """Found needles over findable ones; None if there are none."""
        return self.found / self.findable if self.findable else None


def answers_numbers(row: Row) -> AnswersNumbers | None:
    """Numbers of a row; None if it has no context."""
    facts = row.facts
    if not isinstance(facts, AnswersResult) or not facts.contexts:
        return None
    pairs = [list(zip(text.found, text.found_by_all, strict=True)) for text in facts.contexts]
    depths = []
    for depth in range(len(pairs[0])):
        findable = [found for found, by_all in (text[depth] for text in pairs) if by_all]
        depths.append(fmean(findable) if findable else None)
    agreements = [text.agreement for text in facts.contexts]
    return AnswersNumbers(
        found=sum(found and by_all for text in pairs for found, by_all in text),
        findable=sum(by_all for text in pairs for _, by_all in text),
        needles=sum(map(len, pairs)),
        by_depth=tuple(depths),
        agreement=fmean(agreements),
        lowest_agreement=min(agreements),
        highest_agreement=max(agreements),
        deviation=fmean(text.deviation for text in facts.contexts),
        kv_share=fmean(text.kv_bytes / text.full_bytes for text in facts.contexts),
    )
