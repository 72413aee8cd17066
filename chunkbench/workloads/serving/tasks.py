"""Tasks whose answers follow constraints. Makes their requests, and checks whether answers follow the constraint."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, Literal

from chunkbench.run_error import RunError
from chunkbench.traffic import PlannedRequest, Prompt
from chunkbench.workloads.serving.result import ConstrainedAnswers, ServingPoint
from chunkbench.workloads.serving.servers.system import Watch

if TYPE_CHECKING:  # needs the extra `serving`
    from chunkbench.traffic.load.answer import Tokens

Task = Literal["", "character", "facts", "share"]
SHARE_BYTES = 200
"""Number of bytes of an answer in the task `share`."""
_MOST_FIELDS = 4

_BEGINS = ["Al", "Bren", "Cor", "Dal", "Ed", "Fen", "Gar", "Hol", "Is", "Jor", "Kel", "Lor", "Mar", "Nev", "Or", "Per"]
_ENDS = ["a", "an", "ber", "den", "dra", "el", "eth", "ia", "in", "ion", "mir", "na", "or", "ric", "ra", "wen"]
_PLACES = ["ton", "ford", "burg", "haven", "stead", "mouth", "field", "wick"]
_SIGHTS = [
    "bridge",
    "clock tower",
    "old mill",
    "market hall",
    "glass garden",
    "stone pier",
    "north gate",
    "river museum",
]
_STRING = '"[A-Za-z0-9 ]{1,16}"'
_LONG = '"[A-Za-z0-9 ]{1,24}"'
_WORDS = (
    "every evening the keeper of the light walks along the harbour and counts the boats that came home before the wind"
    " turned and in the morning the baker asks how many of them brought fish for the long tables of the market hall"
)
"""Text from which the keys in answers of the task `share` are cut."""


def _one_of(*words: str) -> str:
    return f'"({"|".join(words)})"'


def _object(**fields: str) -> str:
    """The expression of a JSON object. `fields`: key -> expression of its value."""
    return r"\{" + ",".join(f'"{key}":{value}' for key, value in fields.items()) + r"\}"


_CHARACTER = _object(
    name=_STRING,
    house=_one_of("Ember", "Willow", "Tide", "Slate"),
    blood_status=_one_of("Old", "Mixed", "New"),
    occupation=_one_of("Healer", "Teacher", "Smith", "Keeper", "Writer", "Trader"),
    wand=_object(wood=_STRING, core=_STRING, length=r"[0-9]{1,2}\.[0-9]{1,2}"),
    alive=_one_of("Alive", "Deceased"),
    patronus=_STRING,
    bogart=_STRING,
)
_FACTS = _object(
    name=_LONG,
    country=_LONG,
    latitude=r"-?[0-9]{1,2}\.[0-9]",
    population="[0-9]{1,7}",
    landmarks=rf"\[{_LONG},{_LONG},{_LONG}\]",
)


def regex_of(task: Task, forced: int | None = None) -> str:
    """The regular expression that answers must match. `forced`: only for the task `share`, percentage of bytes without
    a choice.
    """
    return {"character": _CHARACTER, "facts": _FACTS}.get(task) or _shared(forced or 0)


def _shared(forced: int) -> str:
    """An expression with fixed keys, and free strings of fixed lengths. If the fixed bytes are too few for a key, they
    are a fixed text.
    """
    fixed = round(SHARE_BYTES * forced / 100)
    fields = min(_MOST_FIELDS, (fixed - 1) // 7)
    if fields < 1:
        return f"{_WORDS[:fixed]}[a-z ]{{{SHARE_BYTES - fixed}}}"
    keys, free = fixed - 6 * fields - 1, SHARE_BYTES - fixed
    places = [[part * count // fields for part in range(fields + 1)] for count in (keys, free)]
    parts = zip(*(itertools.pairwise(line) for line in places), strict=True)
    members = (f'"{_WORDS[begin:end]}":"[a-z ]{{{last - first}}}"' for (begin, end), (first, last) in parts)
    return r"\{" + ",".join(members) + r"\}"


def prompts_of(task: Task, count: int, seed: str) -> list[str]:
    """Make `count` different prompts about invented names. Different seeds give different prompts."""
    chance, prompts = random.Random(f"task {task} {seed}"), dict[str, None]()

    def name() -> str:
        return chance.choice(_BEGINS) + chance.choice(_ENDS)

    while len(prompts) < count:
        who = f"{name()} {name()}{chance.choice(_ENDS)}"
        if task == "character":
            prompt = (
                f"{who} is a character of a story about a school of magic. One line of JSON tells the name, house,"
                f" blood status, occupation, wand, whether {who} lives, the patronus and the bogart:\n"
            )
        elif task == "facts":
            town, sights = who + chance.choice(_PLACES), chance.sample(_SIGHTS, 3)
            prompt = (
                f"{town} is a town in {name()}land. It lies at a latitude of {chance.uniform(-60, 60):.1f} degrees and"
                f" has {chance.randrange(900, 900_000)} inhabitants. Visitors come for the {sights[0]}, the {sights[1]}"
                f" and the {sights[2]}.\nThe same as JSON:\n"
            )
        else:
            prompt = f"{who} keeps a diary of the harbour. Today's page as JSON:\n"
        prompts[prompt] = None
    return [*prompts]


class TaskRequests:
    """Makes the requests of a task, as token ids."""

    def __init__(self, task: Task, tokenizer: Path, points: Sequence[ServingPoint]) -> None:
        """`tokenizer`: path of the model's tokenizer.json. Raises `RunError` if prompts are longer than `n_p` of a
        point."""
        from tokenizers import Tokenizer

        self._task, self._tokenizer = task, Tokenizer.from_file(str(tokenizer))
        longest, n_p = max(map(len, self._ids(64, "length"))), min(point.n_p for point in points)
        if longest > n_p:
            raise RunError(f"n_p: prompts of {task} have up to {longest} tokens, and n_p = {n_p} is the most; raise it")
        expressions = {point.forced: point for point in points}.values()
        self.first = [request for point in expressions for request in self.drawn(point, 1, "warm-up")]
        """One request for each regular expression."""

    def drawn(self, point: ServingPoint, count: int, seed: str) -> list[PlannedRequest]:
        """Make `count` different requests, all due at once."""
        regex = regex_of(self._task, point.forced)
        return [PlannedRequest(0.0, ids, point.n_c, exact=False, regex=regex) for ids in self._ids(count, seed)]

    def _ids(self, count: int, seed: str) -> list[tuple[int, ...]]:
        return [tuple(self._tokenizer.encode(prompt).ids) for prompt in prompts_of(self._task, count, seed)]


_TRIES = 10


def constrained_answers(
    plan: Sequence[PlannedRequest],
    told: Mapping[Prompt, Tokens],
    watch: Watch,
    window: tuple[float, float],
    keep: bool,
    wait_s: float = 0.1,
) -> ConstrainedAnswers:
    """Check the answers to the requests of a measurement.

    `told`: prompt -> the server's answer. `window`: start and end of the measurement. `keep`: whether to keep the
    texts. `wait_s`: seconds between two attempts to read the costs that the server records.
    """
    kinds = Counter(_kind(request, told) for request in plan)
    names = [told[request.prompt].request if request.prompt in told else "" for request in plan]
    for _ in range(_TRIES):
        works = watch.constrained(*window)
        if not works or works.keys() >= {*names}:
            break
        sleep(wait_s)  # a server records a request only after its answer has been read
    sums: Counter[str] = Counter()
    for work in (works[name] for name in names if name in works):
        sums.update({fact: value for fact, value in work.items() if fact != "spans"}, told=1)
    return ConstrainedAnswers(
        regex=plan[0].regex,
        valid=kinds["valid"],
        cut=kinds["cut"],
        invalid=kinds["invalid"],
        work=dict(sums),
        texts=tuple(_text(request, told) for request in plan) if keep else (),
        spans=tuple(_spans(works.get(name, {})) for name in names) if keep and works else (),
    )


def first_invalid(plan: Sequence[PlannedRequest], told: Mapping[Prompt, Tokens]) -> str:
    """The text of the first answer that breaks its constraint. There must be one."""
    return next(_text(request, told) for request in plan if _kind(request, told) == "invalid")


def _kind(request: PlannedRequest, told: Mapping[Prompt, Tokens]) -> str:
    answer = told.get(request.prompt)
    if answer is not None and re.fullmatch(request.regex, answer.text):
        return "valid"
    return "cut" if answer is not None and answer.cut else "invalid"


def _text(request: PlannedRequest, told: Mapping[Prompt, Tokens]) -> str:
    return told[request.prompt].text if request.prompt in told else ""


def _spans(work: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    return tuple((begin, end) for begin, end in work.get("spans", ()))
