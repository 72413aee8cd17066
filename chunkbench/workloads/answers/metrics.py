"""Metrics of experiments of `kind: answers`."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from chunkbench.report.metric import COUNT, NUMBER, SHARE, Metric, by_name, one
from chunkbench.workloads.answers.result import AnswersContext, AnswersResult


def _each(value: Callable[[AnswersContext], float | None]) -> Callable[[AnswersResult], list[float | None]]:
    """Build a metric that has a value for each context."""
    return lambda facts: [value(context) for context in facts.contexts]


def _found(context: AnswersContext) -> int:
    """Number of needles found, among those that the model finds when all heads keep all tokens."""
    return sum(found and by_all for found, by_all in zip(context.found, context.found_by_all, strict=True))


def _logprob_lost(context: AnswersContext) -> float | None:
    if context.logprob is None or context.full_logprob is None:
        return None
    return context.full_logprob - context.logprob


def _share(facts: AnswersResult) -> float | None:
    findable = sum(map(sum, (context.found_by_all for context in facts.contexts)))
    return sum(map(_found, facts.contexts)) / findable if findable else None


def by_depth(facts: AnswersResult) -> list[float | None]:
    """[depth] share of needles found. Only needles that the model finds with the full cache count. None at a depth
    without such needles.
    """
    depths = zip(*(zip(text.found, text.found_by_all, strict=True) for text in facts.contexts), strict=True)
    findable = [[found for found, by_all in pairs if by_all] for pairs in depths]
    return [fmean(found) if found else None for found in findable]


METRICS = by_name(
    Metric("found", "needles found", _each(_found), COUNT, "higher", sum),
    Metric("findable", "needles that the model finds", _each(lambda text: sum(text.found_by_all)), COUNT, "", sum),
    Metric("needles", "  hidden", _each(lambda text: len(text.found)), COUNT, "", sum),
    Metric("found_share", "needles found, of those that the model finds", one(_share), SHARE, "higher"),
    Metric("agreement", "next tokens, equal", _each(lambda text: text.agreement), SHARE, "higher", fmean),
    Metric("deviation", "deviation", _each(lambda text: text.deviation), NUMBER, combine=fmean),
    Metric("median_deviation", "  median head", _each(lambda text: text.median_deviation), NUMBER, combine=fmean),
    Metric("worst_deviation", "  worst head", _each(lambda text: text.worst_deviation), NUMBER, combine=max),
    Metric("logprob_lost", "log-probability lost", _each(_logprob_lost), NUMBER, combine=fmean),
    Metric("kv_share", "K/V, of full", _each(lambda text: text.kv_bytes / text.full_bytes), SHARE, combine=fmean),
    Metric("full_heads", "heads that keep all", one(lambda facts: facts.full_heads), COUNT, "", exact=True),
)
