"""The tables of the IDMM paper that are about IDMM itself; those that compare it with others are in idmm_methods.py.

The figures are the authors': single runs, but Table 4, and as their code has it of the last epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from vitling.methods import idmm as recipe
from vitling.methods.registry import METHODS, Name
from vitling.papers.counting import CountTask
from vitling.papers.idmm_methods import RANDOM_2, RANDOM_5, TABLE_2, TABLE_5
from vitling.papers.idmm_recipes import ablation
from vitling.papers.idmm_stages import (
    CLASSES,
    COLUMNS,
    NETWORKS,
    after,
    enlarge_to_448,
    finetune_only,
    pretrain_by_method,
)
from vitling.papers.locations import DATASETS
from vitling.papers.stages import StagedTask
from vitling.papers.study import Study, StudyRun
from vitling.settings.config import Preset
from vitling.views.config import ViewsConfig

_DIAGONAL = tuple(TABLE_5[data]["idmm"][i] for i, data in enumerate(COLUMNS))
AT_200 = {  # network: table, from random weights, after IDMM
    "deit-tiny": ("Table 2", RANDOM_2, TABLE_2["idmm"]),
    "pvtv2-b0": ("Table 5", RANDOM_5, _DIAGONAL),
}
TABLE_3 = {  # from ImageNet weights, from random weights, after IDMM at 224 px, and then at 448
    "deit-tiny": (
        (97.3, 88.6, 73.2, 75.6, 76.8, 78.7, 90.3),
        (67.8, 44.5, 54.5, 40.6, 24.3, 33.2, 38.8),
        (83.4, 59.0, 61.8, 56.1, 45.0, 46.0, 73.7),
        (85.6, 64.2, 64.9, 59.9, 50.9, 48.6, 77.8),
    ),
    "deit-base": (
        (97.7, 91.4, 74.9, 78.1, 81.9, 82.8, 92.6),
        (67.3, 48.4, 46.0, 44.0, 27.7, 30.1, 33.3),
        (88.1, 63.2, 62.3, 57.4, 47.8, 43.1, 64.5),
        (90.6, 67.2, 67.3, 61.7, 54.3, 46.6, 70.7),
    ),
    "pvtv2-b0": (
        (98.0, 90.5, 75.9, 76.7, 81.4, 88.3, 92.6),
        (90.3, 80.5, 57.7, 66.3, 66.6, 74.8, 87.9),
        (94.6, 84.7, 69.3, 69.6, 73.8, 79.8, 90.9),
        (95.9, 88.0, 73.2, 73.7, 77.6, 83.3, 92.0),
    ),
    "pvtv2-b3": (
        (98.7, 93.6, 78.1, 80.8, 85.5, 91.7, 94.4),
        (90.5, 83.4, 64.5, 67.5, 66.2, 85.0, 89.9),
        (95.9, 89.8, 68.9, 73.2, 79.0, 90.5, 94.0),
        (96.7, 91.9, 71.8, 76.3, 82.8, 91.8, 94.3),
    ),
    "t2t-vit-7": (
        (97.7, 90.5, 75.2, 76.6, 79.0, 83.8, 92.8),
        (82.1, 66.2, 58.5, 57.7, 35.7, 57.2, 60.3),
        (90.8, 75.0, 64.7, 66.0, 59.0, 71.4, 89.9),
        (91.7, 76.9, 65.7, 68.9, 63.2, 72.9, 91.2),
    ),
}
TABLE_4 = {  # mean and deviation of three, over pre-trainings and over fine-tunings
    ("pvtv2-b0", "flowers102"): ((92.5, 0.1), (92.4, 0.2)),
    ("pvtv2-b0", "pets"): ((83.1, 0.3), (83.5, 0.2)),
    ("t2t-vit-7", "flowers102"): ((89.0, 0.3), (88.6, 0.1)),
    ("t2t-vit-7", "pets"): ((70.9, 0.3), (70.3, 0.2)),
}
TABLE_7: dict[tuple[str, int], dict[tuple[str, Name | Literal["random"]], float]] = {
    # network, epochs: from random weights, and after a method on other images
    ("pvtv2-b0", 100): {
        ("", "random"): 68.6,
        ("sin10k", "moco-v3"): 68.8,
        ("sin10k", "idmm"): 69.5,
        ("sin-total10k", "idmm"): 69.5,
    },
    ("pvtv2-b0", 300): {("", "random"): 70.0, ("sin10k", "idmm"): 70.9},
    ("deit-tiny", 100): {("", "random"): 66.8, ("sin10k", "idmm"): 67.8},
    ("deit-tiny", 300): {("", "random"): 72.2, ("sin10k", "idmm"): 72.9},
}
TABLE_8 = {"plain": 69.6, "smoothing": 70.4, "112 px": 73.1, "multi-crop": 76.9, "CutMix": 79.9}
TABLE_9: dict[str, dict[Name, tuple[float, float]]] = {  # without the MLP, and with it
    "flowers102": {"idmm": (86.6, 85.2), "simclr": (82.2, 83.3)},
    "pets": {"idmm": (65.3, 65.1), "simclr": (60.2, 62.1)},
    "dtd": {"idmm": (59.1, 57.8), "simclr": (57.8, 58.9)},
    "cub": {"idmm": (47.6, 48.0), "simclr": (41.7, 45.8)},
}
SMALLEST = 93.8  # Sec. 4.1
CARDS = 4  # of the released scripts


def studies() -> tuple[Study, ...]:
    paper, both = "IDMM,", "IDMM and random starts, 200 epochs"
    released = "by the released code"
    return (
        Study("idmm-200", both, f"{paper} Tables 2 and 5", _short("paper")),
        Study("idmm-200-released", f"{both}, {released}", f"{paper} Tables 2 and 5", _short("released")),
        Study("idmm-200-causes", "what may lie between Table 2 and us", f"{paper} Table 2", _causes()),
        Study("idmm-t1", "the data sets", f"{paper} Table 1", _counts(), "images"),
        Study("idmm-t3", "from scratch, 800 epochs, then 448 px", f"{paper} Table 3", _long()),
        Study("idmm-t3-released", f"from scratch, 800 epochs, {released}", f"{paper} Table 3", _long_released()),
        Study("idmm-t4", "deviation over each stage, with --seeds 3", f"{paper} Table 4", _deviations()),
        Study("idmm-t7", "ImageNet after 10,000 of its images", f"{paper} Table 7", _imagenet()),
        Study("idmm-t8", "what each part of IDMM adds", f"{paper} Table 8", _ablation("paper")),
        Study("idmm-t8-released", f"the same, {released}", f"{paper} Table 8", _ablation("released")),
        Study("idmm-t9", "an MLP between features and loss", f"{paper} Table 9", _projection()),
        Study("idmm-f3", "parameters against accuracy", f"{paper} Figure 3 and Table 3", _sizes()),
    )


def _idmm(net: str, epochs: int, preset: Preset = "paper") -> StagedTask:
    return after(recipe.recipe(NETWORKS[net], preset), epochs, preset)


def _short(preset: Preset) -> tuple[StudyRun, ...]:
    """Flowers-102 first: what is at hand."""

    def rows() -> Iterator[StudyRun]:
        for i, data in enumerate(COLUMNS):
            for net, (table, random, idmm) in AT_200.items():
                base = f"{net}-{data}-random-200"
                yield StudyRun(base, finetune_only(net, 200, preset), data, paper=random[i], note=table)
                name = f"{net}-{data}-idmm-200"
                yield StudyRun(name, _idmm(net, 200, preset), data, paper=idmm[i], baseline=base, note=table)

    return tuple(rows())


def _causes() -> tuple[StudyRun, ...]:
    """The first stage out of images decoded at 192 px, of which five in six local crops are enlarged, in place of 320.
    Fine-tuning, of which a random start consists, in three other ways: in the released code's number format; with the
    rate that it has for other networks; with DeiT's own views, whose setup the paper says it follows. And both stages
    mixed as on the four cards of the released scripts, each of which draws its own boxes, shares and partners.
    """
    data, net = "flowers102", "deit-tiny"
    idmm = _coarse(_idmm(net, 200))
    base, optim = idmm.finetune, idmm.finetune.optim
    changes = {
        "fp32": replace(base, loop=replace(base.loop, precision="fp32")),
        "lr1e-3": replace(base, optim=replace(optim, lr=1e-3)),
        "deit-views": replace(base, views=ViewsConfig(policy="supervised")),
    }

    def run(net: str, kind: str, task: StagedTask, baseline: str = "", note: str = "") -> StudyRun:
        _, random, pretrained = AT_200[net]
        paper = pretrained if task.pretrain else random
        return StudyRun(f"{net}-{data}-{kind}", task, data, paper=paper[0], baseline=baseline, note=note)

    coarse, as_released = "pre-trained out of 192 px", "released settings"
    runs = [
        run(net, "idmm-200-store192", idmm, note=coarse),
        run(
            "pvtv2-b0",
            "idmm-200-store192",
            _coarse(_idmm("pvtv2-b0", 200, "released")),
            note=f"{coarse}, {as_released}",
        ),
    ]
    for name, finetune in changes.items():
        random = run(net, f"random-200-{name}", StagedTask(finetune))
        then = replace(idmm, finetune=finetune)
        runs += [random, run(net, f"idmm-200-{name}", then, baseline=random.name, note=coarse)]
    both: tuple[tuple[str, Preset, str], ...] = ((net, "paper", ""), ("pvtv2-b0", "released", as_released))
    for other, preset, note in both:
        random = run(other, "random-200-parts4", _in_parts(finetune_only(other, 200, preset)), note=note)
        runs += [random, run(other, "idmm-200-parts4", _in_parts(_idmm(other, 200, preset)), random.name, note)]
    return tuple(runs)


def _in_parts(task: StagedTask) -> StagedTask:
    finetune, first = task.finetune, task.pretrain
    return replace(
        task,
        finetune=replace(finetune, views=replace(finetune.views, mix_parts=CARDS)),
        pretrain=first and replace(first, views=replace(first.views, mix_parts=CARDS)),
    )


def _coarse(task: StagedTask) -> StagedTask:
    assert task.pretrain is not None
    return replace(task, pretrain=replace(task.pretrain, store_size=192))


def _counts() -> tuple[StudyRun, ...]:
    def rows() -> Iterator[StudyRun]:
        for data, classes in CLASSES.items():
            images, note = DATASETS[data], f"the paper: {classes} classes"
            yield StudyRun(f"{data}-train", CountTask("train", classes), data, paper=images.train, note=note)
            yield StudyRun(f"{data}-test", CountTask("test", classes), data, paper=images.test, note=note)

    return tuple(rows())


def _long() -> tuple[StudyRun, ...]:
    return tuple(run for net in TABLE_3 for i in range(len(COLUMNS)) for run in _cell(net, i))


def _cell(net: str, column: int) -> tuple[StudyRun, ...]:
    """Four methods on one data set."""
    data, idmm = COLUMNS[column], _idmm(net, 800)
    imagenet, random, at_224, at_448 = (row[column] for row in TABLE_3[net])
    base = f"{net}-{data}"
    return (
        StudyRun(f"{base}-imagenet-200", finetune_only(net, 200), data, NETWORKS[net], imagenet),
        StudyRun(f"{base}-random-800", finetune_only(net, 800), data, paper=random),
        StudyRun(f"{base}-idmm-800", idmm, data, paper=at_224, baseline=f"{base}-random-800"),
        StudyRun(f"{base}-idmm-800-448", enlarge_to_448(idmm), data, paper=at_448, baseline=f"{base}-idmm-800"),
    )


def _long_released() -> tuple[StudyRun, ...]:
    """List the 224 px rows of Table 3 with the settings of each network's released script.

    The 0.87 M network of Figure 3 follows: the paper gives its accuracy after IDMM alone.
    """

    def pair(net: str, data: str, random: float | None, idmm: float, note: str = "") -> tuple[StudyRun, StudyRun]:
        base = f"{net}-{data}-random-800"
        return (
            StudyRun(base, finetune_only(net, 800, "released"), data, paper=random, note=note),
            StudyRun(f"{net}-{data}-idmm-800", _idmm(net, 800, "released"), data, paper=idmm, baseline=base, note=note),
        )

    table = (
        run
        for net, (_, random, idmm, _) in TABLE_3.items()
        for i, data in enumerate(COLUMNS)
        for run in pair(net, data, random[i], idmm[i])
    )
    small = pair("pvtv2-b0-small", "flowers102", None, SMALLEST, "0.87 M parameters; the paper says 0.8 M")
    return (*table, *small)


def _deviations() -> tuple[StudyRun, ...]:
    """Where one stage is repeated the other has seed 0 throughout."""

    def rows() -> Iterator[StudyRun]:
        for (net, data), (first, second) in TABLE_4.items():
            works: dict[str, StagedTask] = {
                "pretrain": replace(_idmm(net, 200), seeded="pretrain"),
                "finetune": replace(_idmm(net, 200), seeded="finetune"),
            }
            for (name, task), (mean, deviation) in zip(works.items(), (first, second)):
                yield StudyRun(f"{net}-{data}-{name}", task, data, paper=mean, note=f"the paper: ± {deviation} over 3")

    return tuple(rows())


def _imagenet() -> tuple[StudyRun, ...]:
    note = "the paper does not say how it trains on ImageNet; here by its fine-tuning recipe"

    def rows() -> Iterator[StudyRun]:
        for (net, epochs), figures in TABLE_7.items():
            base = f"{net}-random-{epochs}"
            for (pretrain_data, method), figure in figures.items():
                if method == "random":
                    yield StudyRun(base, finetune_only(net, epochs), "imagenet1k", paper=figure, note=note)
                    continue
                name = "-".join([net, pretrain_data, *([method] if method != "idmm" else []), str(epochs)])
                task = pretrain_by_method(net, method, epochs)
                yield StudyRun(
                    name, task, "imagenet1k", paper=figure, baseline=base, note=note, pretrain_data=pretrain_data
                )

    return tuple(rows())


def _ablation(preset: Preset) -> tuple[StudyRun, ...]:
    """Each row beside the one before it."""
    runs: list[StudyRun] = []
    for part, stage in ablation(NETWORKS["deit-tiny"], preset).items():
        name = f"deit-tiny-flowers102-{part.lower().replace(' ', '')}"
        note = "smoothed in the paper, not in its code" if preset == "released" and part != "plain" else ""
        baseline = runs[-1].name if runs else ""
        runs.append(
            StudyRun(name, after(stage, 200, preset), "flowers102", paper=TABLE_8[part], baseline=baseline, note=note)
        )
    return tuple(runs)


def _projection() -> tuple[StudyRun, ...]:
    """Without the MLP, and beside it with one. IDMM's own form is the first, SimCLR's the second."""

    def pair(
        base: str, method: Name, data: str, figures: tuple[float | None, float | None], **about: Any
    ) -> list[StudyRun]:
        name, stage = f"{base}-{method}" if method != "idmm" else base, METHODS[method].recipe(NETWORKS["deit-tiny"])
        without, mlp = (
            after(replace(stage, objective=replace(stage.objective, projection=kind)), 200, method=method)
            for kind in ("none", "mlp")
        )
        first = StudyRun(name, without, data, paper=figures[0], **about)
        return [first, StudyRun(f"{name}-mlp", mlp, data, paper=figures[1], baseline=name, **about)]

    there = [
        run
        for data, methods in TABLE_9.items()
        for method, figures in methods.items()
        for run in pair(f"deit-tiny-sin10k-{data}", method, data, figures, pretrain_data="sin10k")
    ]
    elsewhere = "pre-trained on the data set itself; the paper: on SIN-10k"
    here = [
        run
        for method in TABLE_9["flowers102"]
        for run in pair("deit-tiny-flowers102", method, "flowers102", (None, None), note=elsewhere)
    ]
    return (*there, *here)


def _sizes() -> tuple[StudyRun, ...]:
    small, task = "pvtv2-b0-small-flowers102-idmm-800", _idmm("pvtv2-b0-small", 800)
    unsaid = "0.87 M parameters; the paper says 0.8 M, and not at which size it has 93.8"
    known = "{} M parameters; of the figure only the text can be read, so this is Table 3's"

    def of_table_3(net: str, millions: str) -> Iterator[StudyRun]:
        imagenet, _, *idmm = _cell(net, COLUMNS.index("flowers102"))
        for run in (imagenet, *idmm):
            yield replace(run, baseline="", note=known.format(millions))

    return (
        StudyRun(small, task, "flowers102", paper=SMALLEST, note=unsaid),
        StudyRun(f"{small}-448", enlarge_to_448(task), "flowers102", paper=SMALLEST, note=unsaid),
        *of_table_3("pvtv2-b0", "3.4"),
        *of_table_3("pvtv2-b3", "45"),
    )
