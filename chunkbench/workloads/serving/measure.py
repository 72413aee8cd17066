"""Measures a run on servers. All servers stay up and take turns: one server answers the requests of an arrival seed,
then the next server answers the same requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from time import monotonic
from typing import Any, cast

from chunkbench.bench.experiment.point import Case
from chunkbench.bench.measure.peaks import probe_cpu
from chunkbench.bench.runner.case_facts import now
from chunkbench.bench.runner.dry_run import words_of
from chunkbench.bench.runner.passes import Budget, Workplace
from chunkbench.bench.runner.target import Target
from chunkbench.bench.store.results import Status
from chunkbench.bench.workers.pages import environment
from chunkbench.run_error import CannotRunError
from chunkbench.traffic import Arrivals, PlannedRequest, Prompt, Prompts, draw_prompts, due_times
from chunkbench.traffic.load import LoadError, LoadOptions, LoadResult, ServerTarget, send
from chunkbench.traffic.load.answer import Tokens
from chunkbench.traffic.request_result import RequestResult, load_numbers, normalized_latency
from chunkbench.workloads.serving.answers import Answers
from chunkbench.workloads.serving.budget import Cut, fit
from chunkbench.workloads.serving.machine_share import higher
from chunkbench.workloads.serving.methods import SYSTEMS
from chunkbench.workloads.serving.plan import (
    REFUSED,
    WARM_UP,
    Unit,
    answers_s,
    asked_requests,
    assumed_costs,
    capacity_clients,
    capacity_requests,
    draw_id,
    memory_of,
    outlook,
    parts_of,
    questions_of,
    requests_id,
    setting_of,
    task_of,
    texts_of,
    weight,
)
from chunkbench.workloads.serving.result import MachineLimits, Measurement, ServerFacts, ServingPoint, ServingResult
from chunkbench.workloads.serving.servers.process import SERVER_LOG, RunningServer, start_server
from chunkbench.workloads.serving.servers.system import ServerFailed, Setting, System
from chunkbench.workloads.serving.spec import ServingExperiment
from chunkbench.workloads.serving.tasks import constrained_answers, first_invalid

_END_S, _STOP_S = 8.0, 2.0
"""Approximate seconds that a run needs besides its points, and seconds to end one server."""


@dataclass
class _System:
    """A system of the run and its server."""

    system: System
    version: str = ""
    server: RunningServer | None = None
    refusal: tuple[Status, str] | None = None
    """Status and reason why the system is not measured any more."""
    exact: bool = True
    """Whether weights and K/V have the dtype of the experiment."""
    starts: int = 0
    deaths: int = 0


@dataclass
class _Case:
    """A system at a point, while it is measured."""

    measurements: list[Measurement] = field(default_factory=list)
    failure: tuple[Status, str] | None = None


class ServingMeasurer:
    """Measures the points of a run. Servers stay up between two points, until `close`."""

    def __init__(
        self,
        experiment: ServingExperiment,
        target: Target,
        points: Sequence[ServingPoint],
        place: Workplace[ServingResult],
    ) -> None:
        """Plan the run. Raises `CannotRunError` if no system runs here, if none fits into memory, or if the model is
        missing."""
        self._prepared = monotonic()
        self._setting = setting_of(experiment, target, points)
        self._texts = texts_of(experiment, self._setting)
        self._task = task_of(experiment, self._setting, points)
        self._questions = questions_of(experiment, self._setting, points)
        systems = {name: _survey(name, self._setting, self._task is not None) for name in experiment.implementations}
        if all(entry.refusal for entry in systems.values()):
            reasons = "; ".join(f"{name}: {entry.refusal[1]}" for name, entry in systems.items() if entry.refusal)
            raise CannotRunError(f"no system of this experiment runs here: {reasons}")
        here = {name: entry.system for name, entry in systems.items() if entry.refusal is None}
        self._memory = memory_of(experiment, self._setting, here)
        if not self._memory.groups:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self._memory.too_large.items())
            raise CannotRunError(f"no system of this experiment fits into memory: {reasons}")
        for name, reason in self._memory.too_large.items():
            systems[name].refusal = "oom", reason
        self._setting = replace(self._setting, kv_bytes=self._memory.kv_bytes)
        self._costs = assumed_costs(self._setting, here)
        self._units = [Unit(point, names) for point in points for names in self._memory.groups]
        """The units that are still to be measured, in order."""
        self._begun = False
        """Whether any unit was measured."""
        self._experiment, self._target = experiment, target
        self.styles = SYSTEMS.styles(experiment.implementations)
        self._log = place.log
        self._systems = systems
        # The folder lies beside the log, so that the run that resumes a killed run can remove its files.
        self._folder = place.log.absolute().with_name("servers")
        shutil.rmtree(self._folder, ignore_errors=True)
        self._capacity = {
            requests_id(case): (case.reference, case.capacity_per_s)
            for case in place.earlier
            if case.capacity_per_s and case.machine == target.machine
        }
        # A resumed run gets the share of the budget that belongs to the points still left.
        everything = experiment.points(target.device, target.dtype)
        left_s = experiment.budget_s * sum(map(weight, points)) / sum(map(weight, everything))
        self._equal = {case.implementation: case.equal_answers for case in place.earlier if case.equal_answers}
        # Systems that run elsewhere are left out, because the suite does not set their dtype.
        members = dict.fromkeys(name for names in self._memory.groups for name in names)
        local = [name for name in members if systems[name].system.process_bytes is not None]
        self._to_ask = [name for name in local if name not in self._equal] if self._questions is not None else []
        """Systems whose answers are still to be compared with those of transformers."""
        before_s = answers_s(self._questions, self._costs, points, self._to_ask)
        expected = outlook(experiment, self._units, parts_of(experiment, self._costs, self._units), left_s, before_s)
        for text in (*([self._memory.difference] * bool(self._memory.difference)), *expected):
            place.notify(text)

    def measure(
        self,
        points: Sequence[ServingPoint],
        cases_of: Mapping[ServingPoint, Sequence[Case[ServingPoint]]],
        budget: Budget,
        announce: Callable[[str], None],
    ) -> Mapping[ServingPoint, Sequence[ServingResult]]:
        """Measure all systems at one point, as far as the time allows. If memory is too small for all servers, groups
        of systems are measured one after the other. The order of the systems changes with the arrival seed.
        """
        (point,) = points
        started_at = now()
        groups = self._memory.groups
        others = [unit for unit in self._units if unit.point != point]
        self._units = [*(Unit(point, names) for names in groups), *others]
        left = sum(weight(unit.point) for unit in self._units) / len(groups)
        remaining = Budget(budget.seconds * left / weight(point) - _END_S - _STOP_S * len(self._systems))
        if not self._begun:
            remaining.seconds -= monotonic() - self._prepared
            self._compare_answers(announce)
        cases = {case.implementation: _Case() for case in cases_of[point]}
        peaks, limits, setting = None, None, self._setting
        if setting.device == "cpu" and point.clients is not None:
            peaks = probe_cpu(setting.dtype, setting.threads)
        reference, capacity, rate = "", None, None
        seeds = self._experiment.arrival_seeds
        for group, names in enumerate(groups):
            if (not group or rate is not None) and self._cut(remaining, 0).seeds:
                for name in self._make_room(names):
                    self._start(name, announce)
                if not group:
                    reference, capacity = self._capacity_at(point, announce)
                    rate = self._rate(point, capacity)
                for seeds_done in range(seeds):
                    requests, left_seeds = self._cut(remaining, seeds_done)
                    if rate is None or not left_seeds:
                        break
                    seed = (
                        group * seeds + seeds_done
                    )  # each group has seeds of its own, so that ratios are formed within a group
                    for number, name in enumerate(self._order(names, point, seed), start=1):
                        if cases[name].failure is None and self._start(name, announce):
                            words = f"{name}, arrival seed {seeds_done + 1} of {seeds_done + left_seeds}"
                            announce(words)

                            def report_ended(ended: int, words: str = words, asked: int = requests) -> None:
                                announce(f"{words}, {ended} of {asked} requests answered")

                            self._turn(name, cases[name], point, seed, rate, requests, report_ended)
                        budget.share_done = (
                            group + (seeds_done + number / len(names)) / (seeds_done + left_seeds)
                        ) / len(groups)
                self._begun = True
            del self._units[0]
        budget.share_done = 1.0
        if peaks is not None:  # a probe beside other programs of a shared machine gives too low rates, so there are two
            peaks = higher(peaks, probe_cpu(setting.dtype, setting.threads))
            limits = MachineLimits(peaks=peaks, layers=setting.layers, vocabulary=setting.vocabulary)
        return {
            point: [
                self._facts(case, cases[case.implementation], rate, reference, capacity, started_at, limits)
                for case in cases_of[point]
            ]
        }

    def _compare_answers(self, announce: Callable[[str], None]) -> None:
        """Ask every system that runs here the same questions in float32. Each server runs alone on the machine."""
        asked, names, self._to_ask = self._questions, self._to_ask, []
        if asked is None or not names:
            return
        announce("transformers answers in float32")
        answers = Answers(asked)
        plan = [PlannedRequest(0.0, prompt, asked.n_c, exact=False) for prompt in asked.last_messages]
        options = LoadOptions(self._setting.max_batch, self._experiment.case_limit_s, token_ids=True)
        for name in names:
            announce(f"{name} answers in float32")
            told = self._float32_answers(name, plan, options)
            if told is not None:
                self._equal[name] = answers.compare(told)

    def _float32_answers(
        self, name: str, plan: Sequence[PlannedRequest], options: LoadOptions
    ) -> dict[Any, list[int]] | None:
        """Prompt -> token ids of the answer, from a server of this system that is started for this purpose. None if the
        server does not start.
        """
        try:
            server = self._server(name, replace(self._setting, dtype="float32"), f"{name}-float32")
        except ServerFailed:
            return None
        told: dict[Any, list[int]] = {}
        try:
            ids_of = self._systems[name].system.ids_of

            def ended(_number: int, _result: RequestResult, prompt: Prompt, answer: Tokens) -> None:
                told[prompt] = answer.ids or ids_of(answer.text)

            _sent(server.target, plan, options, ended)
        finally:
            server.stop()
        return told

    def _cut(self, rest: Budget, done: int) -> Cut:
        """The cut of the first unit that is left, if `done` of its arrival seeds are already measured."""
        up = {name for name, entry in self._systems.items() if entry.server is not None or entry.refusal is not None}
        parts = parts_of(self._experiment, self._costs, self._units, up, done)
        cut = fit(parts, rest.left_s)[0]
        if cut.seeds or (self._begun and not done):
            return cut
        return parts[0].cut(0, parts[0].seeds)  # a unit that was begun is measured as far as a comparison needs

    def _make_room(self, names: Sequence[str]) -> Sequence[str]:
        """End the servers of all systems but `names`. Returns `names`."""
        for name, entry in self._systems.items():
            if name not in names and entry.server is not None:
                entry.server.stop()
                entry.server = None
        return names

    def close(self) -> None:
        for entry in self._systems.values():
            if entry.server is not None:
                entry.server.stop()
                entry.server = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, name: str, announce: Callable[[str], None]) -> bool:
        """Start a system's server if it does not run. Returns whether the server runs."""
        entry = self._systems[name]
        if entry.server is not None and entry.server.died:
            entry.server.stop()
            entry.server = None
            entry.deaths += 1
        if entry.server is None and entry.refusal is None:
            if entry.deaths == 3:
                entry.refusal = "crashed", "the server crashed three times"
                return False
            announce(f"{name} starts")
            entry.starts += 1
            began = monotonic()
            try:
                entry.server = self._server(name, self._setting, f"{name}-{entry.starts}")
            except ServerFailed as error:
                entry.refusal = "error", str(error)
                return False
            longest = self._setting.max_length
            prompts = draw_prompts(
                Prompts(longest - 2), WARM_UP, self._experiment.vocabulary, f"warm-up {entry.starts}"
            )
            plan = [PlannedRequest(0.0, prompt, 2) for prompt in prompts]
            plan += self._task.first if self._task is not None else []
            self._send(entry, plan, WARM_UP)
            self._costs.starts[name] = monotonic() - began
        return entry.server is not None

    def _server(self, name: str, setting: Setting, folder_name: str) -> RunningServer:
        """Start a new server of a system. Raises ServerFailed after the server's output is kept."""
        folder = self._folder / folder_name
        try:
            return start_server(self._systems[name].system, setting, folder, environment("huge", os.environ))
        except ServerFailed:
            self._keep_log(name, folder / SERVER_LOG)
            raise

    def _keep_log(self, name: str, log: Path) -> None:
        """Append a server's output to the log of the run, because the server's own folder is removed after the run."""
        with contextlib.suppress(OSError), self._log.open("ab") as file:
            file.write(f"\n===== {name}\n".encode() + log.read_bytes())

    def _capacity_at(self, point: ServingPoint, announce: Callable[[str], None]) -> tuple[str, float | None]:
        """The reference system, and its capacity with the prompts of this point, which is None if unknown."""
        if point.load is None:
            return "", None
        names = [self._experiment.reference, *self._experiment.implementations]
        running = [name for name in names if name in self._systems and self._systems[name].server is not None]
        if not running:
            return self._experiment.reference, None
        key = requests_id(point)
        if key not in self._capacity or self._capacity[key][0] != running[0]:
            announce(f"capacity of {running[0]}")
            plan = self._plan(point, "capacity", capacity_requests(point), None)
            measured = self._send(self._systems[running[0]], plan, capacity_clients(point))
            self._capacity[key] = running[0], load_numbers(measured.requests).requests_per_s
        name, capacity = self._capacity[key]
        if capacity:
            self._costs.learn_capacity(key, point, capacity)
        return name, capacity or None

    def _rate(self, point: ServingPoint, capacity: float | None) -> float | None:
        """Requests per second of the point; 0 for a closed loop, None if unknown."""
        if point.clients:
            return 0.0
        if point.rate is not None:
            return point.rate / 60
        return capacity * cast(int, point.load) / 100 if capacity else None

    def _order(self, names: Sequence[str], point: ServingPoint, seed: int) -> list[str]:
        order = list(names)
        random.Random(f"order {self._experiment.seed} {draw_id(point)} {seed}").shuffle(order)
        return order

    def _plan(self, point: ServingPoint, seed: int | str, count: int, rate: float | None) -> list[PlannedRequest]:
        """The requests of an arrival seed, the same for all systems. Their prompts occur in no earlier measurement."""
        experiment = self._experiment
        named = f"{experiment.seed} {seed}"
        if self._task is not None:
            plan = self._task.drawn(point, count, f"{draw_id(point)} {named}")
        else:
            prompts = Prompts(point.n_p, point.n_s or 0, point.prompts, point.tree)
            drawn = draw_prompts(prompts, count, experiment.vocabulary, f"{draw_id(point)} {named}", self._texts)
            several, beams = point.answers, point.beams is not None
            plan = [PlannedRequest(0.0, prompt, point.n_c, answers=several, beams=beams) for prompt in drawn]
        if not rate:
            return plan
        # All loads have the same sequence of arrivals, stretched in time.
        dues = due_times(Arrivals(experiment.arrivals, experiment.spread), rate, count, named)
        return [replace(request, due=due) for due, request in zip(dues, plan, strict=True)]

    def _send(
        self,
        entry: _System,
        plan: Sequence[PlannedRequest],
        clients: int | None,
        ended: Callable[[Prompt, Tokens], None] = lambda *_: None,
    ) -> LoadResult:
        assert entry.server is not None
        if entry.system.constraint == "left out":
            plan = [replace(request, regex="") for request in plan]
        # Some servers send tokens whose text is not yet complete without text. Ids make every token count at its time.
        options = LoadOptions(clients, self._experiment.case_limit_s, token_ids=True, gaps=True)
        return _sent(entry.server.target, plan, options, lambda _number, _result, *answered: ended(*answered))

    def _turn(
        self,
        name: str,
        case: _Case,
        point: ServingPoint,
        seed: int,
        rate: float,
        requests: int,
        report_ended: Callable[[int], None],
    ) -> None:
        """Measure one system with one arrival seed. `report_ended` is called with the number of requests that have
        ended.
        """
        entry = self._systems[name]
        server = entry.server
        assert server is not None
        answered: dict[Prompt, Tokens] = {}

        def ended(prompt: Prompt, answer: Tokens) -> None:
            answered[prompt] = answer
            report_ended(len(answered))

        began = monotonic()
        server.begin()
        plan = self._plan(point, seed, requests, rate)
        measured = self._send(entry, plan, point.clients, ended)
        latencies = [request.last - request.due for request in measured.requests if request.last is not None]
        fastest_s = min(latencies, default=0.0)
        took_s = monotonic() - began
        self._costs.learn_turn(name, requests_id(point), point, requests, plan[-1].due, took_s, fastest_s)
        end = max((request.last or 0.0 for request in measured.requests), default=0.0)
        moments = server.watch.between(measured.started, measured.started + end)
        peak_bytes = server.peak_bytes()
        gaps = [gap for request in measured.requests for gap in request.gaps]
        answers = None
        if self._task is not None:
            window = measured.started, measured.started + end
            answers = constrained_answers(plan, answered, server.watch, window, not case.measurements)
        case.measurements.append(
            Measurement(
                arrival_seed=seed,
                requests=tuple(request.model_copy(update={"gaps": ()}) for request in measured.requests),
                gap_s=median(gaps) if gaps else None,
                peak_process_bytes=peak_bytes,
                client_cpu=measured.client_cpu,
                server=ServerFacts.of(moments, measured.started, server.watch.sampled),
                constrained=answers,
            )
        )
        failed = [request for request in measured.requests if request.status != "ok"]
        if failed:
            kinds = {request.status for request in failed}
            if server.died:
                self._keep_log(name, server.log)
            status: Status = "crashed" if server.died else "timeout" if "timeout" in kinds else "error"
            status = "incorrect" if kinds == {"wrong"} else status
            reason = server.died or failed[0].reason
            case.failure = status, f"{len(failed)} of {len(measured.requests)} requests failed: {reason}"
        elif answers is not None and answers.invalid and entry.system.constraint == "sent":
            wrong = first_invalid(plan, answered)
            case.failure = (
                "incorrect",
                f"{answers.invalid} of {len(plan)} answers break their constraint: {wrong!r:.300}",
            )

    def _facts(
        self,
        case: Case[ServingPoint],
        state: _Case,
        rate: float | None,
        reference: str,
        capacity: float | None,
        started_at: str,
        limits: MachineLimits | None,
    ) -> ServingResult:
        entry = self._systems[case.implementation]
        failure = state.failure or (entry.refusal if not state.measurements else None)
        if failure is None and not state.measurements and (rate is not None or not reference):
            budget = words_of(self._experiment.budget_s)
            failure = (
                "unsupported",
                f"left out: the budget of {budget} ended before this point; a longer --budget measures the point",
            )
        if failure is None and rate is None:
            failure = "error", f"the capacity of {reference} is not known"
        samples = [fmean(map(normalized_latency, m.requests)) * 1e6 for m in state.measurements] if not failure else []
        equal = self._equal.get(case.implementation)
        if failure is None and equal is not None and equal.different and entry.exact:
            told = f"{equal.different} of {equal.compared} answers in float32 differ from those of transformers"
            failure = "incorrect", told
        status, reason = failure or ("ok", "")
        # A server that runs elsewhere has other limits. Packed weights have other bytes.
        if limits is not None and entry.system.process_bytes is not None and entry.exact:
            limits = limits.model_copy(update={"shared_reads": entry.system.sharing == "reads"})
        else:
            limits = None
        numbers = [measurement.numbers for measurement in state.measurements]
        if not failure and any(number.client_late for number in numbers):
            late = max(number.sending_delay.mean for number in numbers if number.sending_delay)
            status, reason = "noisy", f"the client sent requests late (mean {late * 1e3:.0f} ms)"
        return ServingResult.of_case(
            case,
            threads=self._setting.threads,
            experiment=self._experiment.name,
            label=entry.system.label,
            status=status,
            reason=reason,
            us_per_token=tuple(samples),
            package_version=entry.version or None,
            note="; ".join(text for text in (entry.system.note, self._memory.difference) if text),
            seed=self._experiment.seed,
            started_at=started_at,
            machine=self._target.machine,
            requests_per_s=rate or None,
            reference=reference,
            capacity_per_s=capacity,
            asked_requests=asked_requests(self._experiment.requests, case.point),
            weights=self._setting.shape.weights,
            machine_limits=limits,
            measurements=tuple(state.measurements),
            server_said=_scrubbed(entry.server.target.said) if entry.server is not None else {},
            equal_answers=equal,
        )


def _scrubbed(said: Mapping[str, Any]) -> dict[str, Any]:
    """A server's description of its model, without paths of this machine and without OpenAI's permissions."""
    return {name: value for name, value in said.items() if name not in ("root", "permission")}


def _survey(name: str, setting: Setting, constrained: bool) -> _System:
    """Look up a system, and check whether it runs here."""
    system = SYSTEMS.load(name)
    answer = system.availability(setting.device)
    if not answer.ok:
        reason = f"{answer.reason}: {answer.remedy}" if answer.remedy else answer.reason
        return _System(system, refusal=("unavailable", reason))
    refusal: tuple[Status, str] | None = None
    exact: bool = True
    """Whether weights and K/V have the dtype of the experiment."""
    if constrained and system.constraint == "refused":
        refusal = "unsupported", REFUSED
    elif reason := system.refusal(setting):
        refusal = "unsupported", reason
    exact = system.exact and setting.kv_dtype == "same"
    return _System(system, system.package_version(), refusal=refusal, exact=exact)


def _sent(
    target: ServerTarget,
    plan: Sequence[PlannedRequest],
    options: LoadOptions,
    ended: Callable[[int, RequestResult, Prompt, Tokens], None],
) -> LoadResult:
    """Send requests and return the results. Raises `CannotRunError` if this machine reaches a limit, rather than the
    server.
    """
    try:
        return asyncio.run(send(target, plan, options, ended))
    except LoadError as error:
        raise CannotRunError(str(error)) from None
