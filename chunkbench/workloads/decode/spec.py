"""Experiments of decode attention: their keys and the rules of their axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from pydantic import Field

from chunkbench.bench.experiment import AttentionPoint, TimedExperiment
from chunkbench.bench.experiment.findings import Finding
from chunkbench.bench.experiment.forest import prompt_conflicts
from chunkbench.bench.experiment.spec import N_P, N_S
from chunkbench.bench.experiment.terms import Compensation
from chunkbench.bench.experiment.tree import sequences_in
from chunkbench.draft import CHAIN
from chunkbench.text_file import did_you_mean

_OTHERS = "`kind: modules`, `kind: serving` and `kind: replay`"
MODEL = {"model": f"is only for {_OTHERS}; write heads, kv_heads and head_dim instead"}


class DecodeExperiment(TimedExperiment[AttentionPoint]):
    """An experiment that times implementations of decode attention in turns."""

    POINT = AttentionPoint
    REQUIRED = (N_P, N_S)
    REFUSED = MODEL

    figure: Literal[
        "speedup", "token_rate", "advantage", "head_caches", "latent", "query_rows", "ranking", "checks"
    ] = Field(
        "speedup",
        description="the figure: speedup, token_rate (against n_c or batch size), advantage (over n_s and batch "
        "size), head_caches (smaller caches: bytes, time, deviation), latent (gain of expanding what is shared), "
        "query_rows (time of several query rows over that of one), ranking (all implementations over all points), "
        "checks (no figure, only errors of results)",
    )

    @classmethod
    def conflicts(cls, given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Finding]:
        return attention_conflicts(given, values)


def attention_conflicts(given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Finding]:
    """Conflicts among the axes of an experiment whose sequences decode together."""
    if "tree" in given and given.get("batch_size", sequences_in(given["tree"])) != sequences_in(given["tree"]):
        told = f"{given['batch_size']} disagrees with tree, which holds {sequences_in(given['tree'])} sequences"
        yield Finding(("batch_size",), f"{told}; leave it out")
    yield from prompt_conflicts({**given, "n_c": values["n_c"]}, values["batch_size"], values["prompts"])
    if values["compensation"] not in (None, *get_args(Compensation)):
        known = list(get_args(Compensation))
        told = f"there is no compensation {values['compensation']!r}{did_you_mean(values['compensation'], known)}"
        yield Finding(("compensation",), told)
    if "window" in given and "kv_share" in given:
        yield Finding(("window",), "follows from kv_share; keep only one of the two", True)
    if values["draft"] != CHAIN and "query_rows" in given:
        yield Finding(("query_rows",), "follows from draft, which is a tree; leave it out", True)
    least = values["n_p"][0] if isinstance(values["n_p"], tuple) else values["n_p"]
    if isinstance(least, int) and values["query_rows"] > least + 1:
        yield Finding(("query_rows",), f"{values['query_rows']} is more than the {least + 1} tokens of a first step")
    if "latent" in given:
        if values["query_rows"] > 1:
            yield Finding(("query_rows",), "the rows of latent attention take one query row; leave it out", True)
        for name in ("kv_heads", "head_dim"):
            if name in given:
                yield Finding((name,), "follows from latent; leave it out", True)
        if given.get("kv_dtype", "same") != "same":
            yield Finding(("kv_dtype",), "latents are stored in dtype; leave kv_dtype out", True)
        if "heads" in given and given["latent"].heads is not None:
            yield Finding(("heads",), "follows from the model of latent; leave it out, or write its dimensions", True)
    elif "projections" in given:
        yield Finding(("projections",), "is only for points with latent", True)
    elif values["heads"] % values["kv_heads"]:
        yield Finding(("kv_heads",), f"{values['kv_heads']} does not divide heads = {values['heads']}")
