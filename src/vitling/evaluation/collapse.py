"""Collapse detection during pre-training, with a message: what was observed, since when, and what to change.

The limits separate healthy small runs from the same runs broken on purpose: results/collapse.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from vitling.errors import RunAborted
from vitling.objectives.moments import Moment, Watcher

CONSTANT = 0.1  # spread: at least 0.18 in healthy runs, at most 0.05 after a collapse
ONE_DIRECTION = 1.5  # effective rank: at least 2.3 in healthy runs; 1 for a line, 2 for two equal directions
# relative gain over the uniform loss: at least 0.003 in healthy self-distillation, 0.0001 in broken runs
UNIFORM = 0.001
DEAD = 0.1  # `Objective.health`: for a queue it is the spread of its keys, hence the limit of features
GRACE_STEPS = 300  # healthy runs looked collapsed for up to 70 steps
GRACE_FRACTION = 0.1  # of the epochs
CONSECUTIVE = 3  # bad checks in a row, so that a dip is not a collapse
RECOVERY = 0.2  # gain in health over these checks that counts as recovering

FEATURES = "features"
FIRST_ADVICE = "a lower --optim.lr, a longer --optim.warmup-epochs or a larger --batch"


class Symptom(NamedTuple):
    """A symptom of collapse: bad if `health` is below 1, and worst at 0."""

    name: str
    health: float
    observation: str
    advice: str
    source: str = FEATURES  # the loss term, or the part of the objective, that shows it


@dataclass
class CollapseWatcher:
    """Watcher that stops a collapsed run, or warns once per symptom; returns the metrics of `watcher` and health."""

    watcher: Watcher
    stop: bool = True
    warn: Callable[[str], None] = print
    warnings: list[str] = field(init=False, default_factory=list)
    bad_checks: dict[str, list[tuple[int, float]]] = field(init=False, default_factory=dict)  # in a row: epoch, health
    reported: set[str] = field(init=False, default_factory=set)
    first_step: dict[str, int] = field(init=False, default_factory=dict)  # of each source of symptoms

    @property
    def every(self) -> int:
        return self.watcher.every

    def __call__(self, moment: Moment) -> dict[str, float]:
        metrics, health = self.watcher(moment), moment.objective.health()
        symptoms = find_symptoms(metrics, health, moment)
        self._start_grace(moment, health)
        self.bad_checks = {s.name: [*self.bad_checks.get(s.name, []), (moment.epoch, s.health)] for s in symptoms}
        alarms = [s for s in symptoms if self._is_alarm(s, moment) and s.name not in self.reported]
        if alarms:
            message = f"Epoch {moment.epoch}: this run has collapsed. {self._explain(alarms)}"
            if self.stop:
                raise RunAborted(message)
            self.reported |= {s.name for s in alarms}
            self.warnings.append(message)
            self.warn(message)
        return {**metrics, **{f"health/{name.replace(' ', '_')}": value for name, value in health.items()}}

    def _start_grace(self, moment: Moment, health: dict[str, float]) -> None:
        """Start the grace period of new sources: at step 0 for those of the first check, now for later ones."""
        now = moment.step if self.first_step else 0
        for name in (*moment.objective.uniform_loss(), *health, FEATURES):
            self.first_step.setdefault(name, now)

    def _is_alarm(self, symptom: Symptom, moment: Moment) -> bool:
        checks = self.bad_checks[symptom.name][-CONSECUTIVE:]
        settled = (
            moment.step - self.first_step[symptom.source] >= GRACE_STEPS
            and moment.epoch >= GRACE_FRACTION * moment.epochs
        )
        return settled and len(checks) == CONSECUTIVE and symptom.health - checks[0][1] < RECOVERY

    def _explain(self, alarms: list[Symptom]) -> str:
        observations = " ".join(f"Since epoch {self.bad_checks[s.name][0][0]} {s.observation}." for s in alarms)
        advice = dict.fromkeys([FIRST_ADVICE, *(s.advice for s in alarms)])  # once each, in order
        return f"{observations} What to change: {'; '.join(advice)}."


def find_symptoms(metrics: dict[str, float], health: dict[str, float], moment: Moment) -> list[Symptom]:
    """Find the symptoms of this moment alone; a symptom that stays becomes an alarm."""
    symptoms = [*_check_features(metrics, moment), *_check_losses(moment), *_check_health(health)]
    return [symptom for symptom in symptoms if symptom.health < 1]


def _check_features(metrics: dict[str, float], moment: Moment) -> list[Symptom]:
    spread, rank, cosine = (metrics[f"features/{name}"] for name in ("spread", "effective_rank", "cosine"))
    dim = moment.objective.backbone.dim
    constant = (
        f"all images look alike to the network: the spread of its features is {spread:.3f} (1 is uniform, 0 is "
        f"constant), and the mean cosine of two images is {cosine:.3f}"
    )
    line = f"the features lie along one direction: their effective rank is {rank:.1f} of {dim} dimensions"
    apart = "a loss without negatives must keep images apart: by a stop-gradient, a predictor, a centred teacher"
    return [
        Symptom("constant", spread / CONSTANT, constant, apart),
        Symptom("direction", rank / ONE_DIRECTION, line, apart),
    ]


def _check_losses(moment: Moment) -> list[Symptom]:
    return [
        _check_loss(name, moment.terms[name], uniform, moment.objective.is_self_distillation)
        for name, uniform in moment.objective.uniform_loss().items()
        if name in moment.terms and uniform > 0  # uniform loss 0: there is a single class and nothing to learn
    ]


def _check_loss(name: str, value: float, uniform: float, is_self_distillation: bool) -> Symptom:
    """Check whether a loss term is stuck at the value of uniform outputs.

    A value above it is no better, except in self-distillation, where a confident teacher may disagree.
    """
    gained = (abs(uniform - value) if is_self_distillation else max(0.0, uniform - value)) / uniform
    observation = f"the term '{name}' sits at {value:.3f}, and uniform outputs would cost {uniform:.3f}"
    advice = "if the loss never moved, a higher --optim.lr; weaker augmentation; a lower teacher temperature, if any"
    return Symptom(f"uniform {name}", gained / UNIFORM, observation, advice, name)


def _check_health(health: dict[str, float]) -> list[Symptom]:
    advice = "a higher momentum, if a momentum encoder fills it; a centred teacher, if it is the teacher's"
    return [
        Symptom(f"dead {name}", value / DEAD, f"the {name} died out: health {value:.3f} (1 best, 0 dead)", advice, name)
        for name, value in health.items()
    ]
