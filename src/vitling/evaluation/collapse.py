"""A collapse, told from the numbers of a run and named in words: what was seen, since when, and what to change.

The limits lie between small runs that are whole and the same broken on purpose: results/collapse.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from vitling.errors import RunAborted
from vitling.objectives.moments import Moment, Watcher

CONSTANT = 0.1  # spread: 0.18 and more in whole runs, 0.05 and less after a collapse
ONE_DIRECTION = 1.5  # effective rank: 2.3 and more in whole runs; a line has 1, two directions alike have 2
GUESSING = 0.001  # share of the uniform loss gained: whole self-distillation came down to 0.003, broken runs to 0.0001
DEAD = 0.1  # of `Objective.health`: that of a queue is a spread, and its limit that of features
GRACE_STEPS, GRACE_SHARE = 300, 0.1  # until then a whole run may look so: some did for 70 steps
LOOKS = 3  # one after the other, so that a dip is not a collapse
HEALING = 0.2  # of the way from dead to the limit, gained over these looks: slow, but alive

FEATURES = "features"
FIRST_ADVICE = "a lower --optim.lr, a longer --optim.warmup-epochs or a larger --batch"


class Sign(NamedTuple):
    """`level` is below 1 where it is a bad sign, and 0 at its worst."""

    name: str
    level: float
    seen: str
    advice: str
    of: str = FEATURES  # the term, or the part, that shows it


@dataclass
class CollapseWatcher:
    """Gives what `watcher` measures. Stops a run that has collapsed, or, told not to, says so once for each sign."""

    watcher: Watcher
    stop: bool = True
    say: Callable[[str], None] = print
    seen: dict[str, list[tuple[int, float]]] = field(
        init=False, default_factory=dict
    )  # bad looks in a row: epoch, level
    said: set[str] = field(init=False, default_factory=set)
    words: list[str] = field(init=False, default_factory=list)  # what it has said
    began: dict[str, int] = field(init=False, default_factory=dict)  # step since which there is something to look at

    @property
    def every(self) -> int:
        return self.watcher.every

    def __call__(self, moment: Moment) -> dict[str, float]:
        metrics, health = self.watcher(moment), moment.objective.health()
        signs = bad_signs(metrics, health, moment)
        self._notice(moment, health)
        self.seen = {s.name: [*self.seen.get(s.name, []), (moment.epoch, s.level)] for s in signs}
        alarms = [s for s in signs if self._is_alarm(s, moment) and s.name not in self.said]
        if alarms:
            words = f"Epoch {moment.epoch}: this run has collapsed. {self._explain(alarms)}"
            if self.stop:
                raise RunAborted(words)
            self.said |= {s.name for s in alarms}
            self.words.append(words)
            self.say(words)
        return {**metrics, **{f"health/{name.replace(' ', '_')}": value for name, value in health.items()}}

    def _notice(self, moment: Moment, health: dict[str, float]) -> None:
        """A term that a run begins with has its grace from the start, one that comes later from then on."""
        now = moment.step if self.began else 0
        for name in (*moment.objective.uniform_loss(), *health, FEATURES):
            self.began.setdefault(name, now)

    def _is_alarm(self, sign: Sign, moment: Moment) -> bool:
        looks = self.seen[sign.name][-LOOKS:]
        settled = moment.step - self.began[sign.of] >= GRACE_STEPS and moment.epoch >= GRACE_SHARE * moment.epochs
        return settled and len(looks) == LOOKS and sign.level - looks[0][1] < HEALING

    def _explain(self, alarms: list[Sign]) -> str:
        seen = " ".join(f"Since epoch {self.seen[s.name][0][0]} {s.seen}." for s in alarms)
        advice = dict.fromkeys([FIRST_ADVICE, *(s.advice for s in alarms)])  # once each, in order
        return f"{seen} What to change: {'; '.join(advice)}."


def bad_signs(metrics: dict[str, float], health: dict[str, float], moment: Moment) -> list[Sign]:
    """Of this moment alone; a sign becomes an alarm when it stays."""
    signs = [*_of_features(metrics, moment), *_of_losses(moment), *_of_health(health)]
    return [sign for sign in signs if sign.level < 1]


def _of_features(metrics: dict[str, float], moment: Moment) -> list[Sign]:
    spread, rank, cosine = (metrics[f"features/{name}"] for name in ("spread", "effective_rank", "cosine"))
    dim = moment.objective.backbone.dim
    constant = (
        f"all images look alike to the network: the spread of its features is {spread:.3f} (1 is even over all "
        f"directions, 0 constant), and two images have a mean cosine of {cosine:.3f}"
    )
    line = f"the features lie along one direction: their effective rank is {rank:.1f} of {dim} dimensions"
    apart = "a loss without negatives needs what keeps images apart: a stop-gradient, a predictor, a centred teacher"
    return [
        Sign("constant", spread / CONSTANT, constant, apart),
        Sign("direction", rank / ONE_DIRECTION, line, apart),
    ]


def _of_losses(moment: Moment) -> list[Sign]:
    return [
        _of_loss(name, moment.terms[name], uniform, moment.objective.is_self_distillation)
        for name, uniform in moment.objective.uniform_loss().items()
        if name in moment.terms and uniform > 0  # with a single answer there is nothing to learn
    ]


def _of_loss(name: str, value: float, uniform: float, is_self_distillation: bool) -> Sign:
    """Above the uniform value is no better than at it, but where a teacher is sure of something else."""
    gained = (abs(uniform - value) if is_self_distillation else max(0.0, uniform - value)) / uniform
    seen = f"the term '{name}' sits at {value:.3f}, and answers that are all equally likely cost {uniform:.3f}"
    advice = (
        "if the loss never moved, a higher --optim.lr; views that are less altered; a colder teacher, if there is one"
    )
    return Sign(f"uniform {name}", gained / GUESSING, seen, advice, name)


def _of_health(health: dict[str, float]) -> list[Sign]:
    advice = "a higher momentum of the network that fills it, if one does; a centred teacher, if it is a teacher's"
    return [
        Sign(
            f"dead {name}",
            value / DEAD,
            f"the {name} died out: health {value:.3f} (1 is well, 0 dead)",
            advice,
            name,
        )
        for name, value in health.items()
    ]
