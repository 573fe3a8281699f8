"""Tables and figures of the IDMM paper that compare methods of pre-training.

The paper's figures are single runs. The settings of each method are Table 10's (methods/baselines.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vitling.methods import METHODS, MethodName
from vitling.methods.method import SIZE
from vitling.papers.idmm_recipes import COLUMNS, NETWORKS, finetune_only, pretrain_and_finetune, pretrain_by_method
from vitling.papers.locations import DATASETS
from vitling.papers.stages import StagedTask
from vitling.papers.study import Study, StudyRun
from vitling.papers.tsne import TsneTask

Figures = tuple[float, ...]  # top-1 on the seven data sets of COLUMNS, %
TITLES: dict[MethodName, str] = {
    "idmm": "IDMM",
    "supervised": "supervised",
    "simclr": "SimCLR",
    "supcon": "SupCon",
    "moco-v2": "MoCo v2",
    "moco-v3": "MoCo v3",
    "byol": "BYOL",
    "dino": "DINO",
}
RANDOM = "random start"
NOT_THERE = "not in the paper"

RANDOM_2: Figures = (58.1, 31.8, 49.4, 31.0, 23.8, 14.6, 12.3)
TABLE_2: dict[MethodName, Figures] = {
    "simclr": (71.1, 52.1, 55.9, 50.7, 36.2, 43.2, 64.3),
    "supcon": (72.3, 50.3, 55.6, 49.3, 37.8, 29.4, 66.2),
    "moco-v2": (61.8, 41.5, 50.6, 41.1, 31.6, 37.7, 44.0),
    "moco-v3": (67.0, 52.9, 52.9, 49.4, 20.5, 32.0, 53.7),
    "dino": (64.1, 51.3, 51.7, 46.9, 41.8, 45.7, 65.3),
    "idmm": (79.9, 56.7, 61.2, 53.9, 43.1, 43.2, 66.4),
}
RANDOM_5: Figures = (76.3, 65.1, 55.7, 58.9, 55.2, 41.7, 76.7)
TABLE_5: dict[str, dict[MethodName, Figures]] = {  # by pre-training data and method
    "flowers102": {
        "idmm": (92.4, 83.1, 64.8, 66.3, 69.9, 77.1, 87.3),
        "simclr": (90.1, 80.7, 61.6, 64.3, 62.3, 72.8, 86.6),
        "supcon": (91.2, 82.4, 63.1, 65.3, 66.3, 75.0, 87.0),
    },
    "pets": {
        "idmm": (92.8, 83.2, 65.3, 64.9, 70.1, 78.1, 87.3),
        "simclr": (89.9, 82.8, 62.7, 63.7, 67.6, 76.1, 86.6),
        "supcon": (90.4, 84.7, 63.5, 64.6, 69.6, 76.1, 87.8),
    },
    "dtd": {
        "idmm": (92.9, 82.9, 66.9, 67.3, 70.0, 78.5, 86.7),
        "simclr": (89.1, 79.4, 62.3, 64.0, 64.4, 73.9, 85.4),
        "supcon": (88.9, 79.7, 62.3, 63.6, 65.1, 75.8, 86.2),
    },
    "indoor67": {
        "idmm": (93.2, 82.7, 65.4, 68.5, 70.4, 79.7, 87.7),
        "simclr": (90.3, 80.7, 62.8, 66.6, 61.3, 72.8, 86.4),
        "supcon": (90.9, 82.2, 62.9, 65.0, 66.9, 74.6, 86.8),
    },
    "cub": {
        "idmm": (93.7, 83.3, 67.0, 68.7, 69.8, 78.7, 87.6),
        "simclr": (91.3, 82.2, 63.9, 64.9, 68.5, 76.7, 87.3),
        "supcon": (90.6, 83.0, 63.8, 66.5, 68.6, 77.0, 87.4),
    },
    "aircraft": {
        "idmm": (91.3, 82.0, 64.5, 64.3, 70.3, 73.4, 87.3),
        "simclr": (87.0, 78.3, 60.6, 62.9, 65.2, 74.4, 86.2),
        "supcon": (87.9, 79.3, 62.4, 61.9, 66.4, 76.5, 86.2),
    },
    "cars": {
        "idmm": (93.4, 85.0, 66.5, 69.4, 72.2, 79.5, 87.8),
        "simclr": (90.9, 84.5, 64.3, 67.4, 68.8, 79.1, 89.3),
        "supcon": (91.1, 84.6, 65.1, 68.3, 70.4, 79.3, 90.6),
    },
}
TABLE_6: dict[str, dict[MethodName, Figures | None]] = {  # pre-trained on SIN-10k; None: failed to train
    "pvtv2-b0": {
        "supervised": (92.9, 81.7, 66.1, 65.9, 66.6, 78.7, 86.0),
        "moco-v3": (91.0, 81.4, 62.3, 66.3, 63.7, 74.5, 86.2),
        "dino": (92.3, 82.3, 65.9, 68.5, 65.8, 76.9, 86.4),
        "idmm": (93.8, 83.6, 66.8, 69.4, 70.7, 81.3, 87.5),
    },
    "pvtv2-b3": {
        "supervised": (90.9, 80.9, 62.9, 63.3, 65.6, 83.8, 89.7),
        "moco-v3": (93.7, 87.1, 66.0, 70.5, 63.7, 82.2, 92.3),
        "dino": (95.0, 87.8, 68.3, 73.4, 72.4, 86.1, 92.5),
        "idmm": (95.9, 88.4, 70.1, 73.6, 76.8, 87.5, 92.9),
    },
    "t2t-vit-7": {
        "supervised": (80.8, 57.8, 57.5, 50.7, 35.6, 56.8, 59.9),
        "moco-v3": None,
        "dino": None,
        "idmm": (89.8, 74.1, 63.5, 62.6, 55.2, 72.7, 82.4),
    },
}
BY_SGD: tuple[MethodName, ...] = ("simclr", "supcon", "moco-v2")
MOCO_LR = 0.03  # MoCo v2's own paper, for batches of 256
LENGTHS = (100, 200, 400, 800)  # epochs of pre-training

CORNER = ("flowers102", "cifar100-10k")  # the labelled data sets
CORNER_BEFORE = (*CORNER, "camvid")
CORNER_METHODS: tuple[MethodName, ...] = ("idmm", "simclr")
CORNER_EPOCHS, CORNER_SIZE = (200, 100), 112  # epochs of Flowers-102 before and after; pixels of both stages


def studies() -> tuple[Study, ...]:
    """List the studies that compare methods."""
    paper, matrix, new = "IDMM,", "pre-trained on one data set, fine-tuned on another", Study.from_runs
    pre, fine = CORNER_EPOCHS
    seen = f"as many images as {pre} epochs of Flowers-102 show, then {fine} epochs, all at {CORNER_SIZE} px"
    nearest = "leave-one-out 5-NN among test images of ten classes before fine-tuning, %"
    return (
        new("idmm-t2", "methods of pre-training", f"{paper} Table 2", _methods()),
        new("idmm-t2-causes", "what may lie between Table 2's baselines and us", f"{paper} Table 2", _optimisers()),
        new("idmm-t5", matrix, f"{paper} Table 5", _transfer(), picture="heatmap"),
        new("idmm-t5-corner", f"{matrix}, shortened: {seen}", f"after {paper} Table 5", _corner(), picture="heatmap"),
        new("idmm-t6", "after 10,000 images of ImageNet", f"{paper} Table 6", _ten_thousand()),
        new("idmm-f2", "t-SNE of ten classes", f"{paper} Figure 2", _before_and_after(), nearest, picture="tsne"),
        new("idmm-f4", "methods by length of pre-training", f"{paper} Figure 4 and Table 2", _lengths()),
    )


def _methods() -> Iterator[StudyRun]:
    """Compare the methods of Table 2, and BYOL, which is not in the paper."""
    for i, data in enumerate(COLUMNS):
        base = f"deit-tiny-{data}-random"
        yield StudyRun(base, finetune_only("deit-tiny", 200), data, paper=RANDOM_2[i])
        for method, figures in TABLE_2.items():
            task = pretrain_by_method("deit-tiny", method)
            yield StudyRun(f"deit-tiny-{data}-{method}", task, data, paper=figures[i], baseline=base)
        task = pretrain_by_method("deit-tiny", "byol")
        yield StudyRun(f"deit-tiny-{data}-byol", task, data, baseline=base, note=NOT_THERE)


def _optimisers() -> Iterator[StudyRun]:
    """Vary what may explain the gap to Table 2's baselines.

    Table 10 gives three methods SGD at 5e-4, a sixtieth of the learning rate in MoCo v2's own paper. Here they use
    IDMM's optimiser instead, and SGD at MoCo v2's 0.03 for each 256 images. MoCo v2, whose queue is longer than the
    data set, also masks an image's own keys. Each is compared with the method as Table 10 has it.
    """
    data, backbone = "flowers102", NETWORKS["deit-tiny"]
    for method in BY_SGD:
        name = f"deit-tiny-{data}-{method}"
        paper = TABLE_2[method][COLUMNS.index(data)]
        yield StudyRun(name, pretrain_by_method("deit-tiny", method), data, paper=paper)
        recipe = METHODS[method].recipe(backbone, "paper", 800, SIZE)
        changes = {
            "-adamw": METHODS[method].recipe(backbone, "adamw", 800, SIZE),
            "-sgd0.03": replace(recipe, optim=replace(recipe.optim, lr=MOCO_LR * recipe.batch / 256)),
        }
        if method == "moco-v2":
            changes["-mask-own"] = replace(recipe, objective=replace(recipe.objective, mask_own=True))
        for change, changed in changes.items():
            task = pretrain_and_finetune(changed, 200, method=method)
            yield StudyRun(f"{name}{change}", task, data, baseline=name)


def _make_transfer(
    method: MethodName, source: str, data: str, task: StagedTask, paper: float | None = None
) -> StudyRun:
    """Make a cell of the matrix; on its diagonal there is one data set."""
    return StudyRun(
        f"pvtv2-b0-{method}-{source}-to-{data}",
        task,
        data,
        paper=paper,
        baseline=f"pvtv2-b0-random-to-{data}",
        pretrain_data=source if source != data else "",
        cell=(f"{source}, {TITLES[method]}", data),
    )


def _transfer() -> Iterator[StudyRun]:
    """List the matrix column by column, Flowers-102 first.

    `--only to-cars` is a column, `--only cars-to` what was pre-trained on cars, `--only cars` both.
    """
    for i, data in enumerate(COLUMNS):
        task = finetune_only("pvtv2-b0", 200)
        yield StudyRun(f"pvtv2-b0-random-to-{data}", task, data, paper=RANDOM_5[i], cell=(RANDOM, data))
        for source, methods in TABLE_5.items():
            for method, figures in methods.items():
                yield _make_transfer(method, source, data, pretrain_by_method("pvtv2-b0", method), figures[i])


def _corner() -> Iterator[StudyRun]:
    """List what labels allow of a 3 x 3 corner: three sources, one of them unlabelled frames, and two targets.

    SimCLR, whose pre-training costs a third, takes the place of a third target. Every source shows as many images in
    total; CamVid's few come in smaller batches and so in more steps. In Table 5 each source has as many epochs.
    """
    pre, fine = CORNER_EPOCHS
    images = pre * DATASETS["flowers102"].train
    for data in CORNER:
        task = finetune_only("pvtv2-b0", fine, size=CORNER_SIZE)
        yield StudyRun(f"pvtv2-b0-random-to-{data}", task, data, cell=(RANDOM, data))
        for method in CORNER_METHODS:
            for source in CORNER_BEFORE:
                epochs = round(images / DATASETS[source].train)
                recipe = METHODS[method].recipe(NETWORKS["pvtv2-b0"], "paper", epochs, CORNER_SIZE)
                task = pretrain_and_finetune(recipe, fine, method=method, size=CORNER_SIZE)
                yield _make_transfer(method, source, data, task)


def _ten_thousand() -> Iterator[StudyRun]:
    failed = "the paper: does not converge, whatever was tried"
    for net, methods in TABLE_6.items():
        for i, data in enumerate(COLUMNS):
            base = f"{net}-sin10k-{data}-supervised"
            for method, figures in methods.items():
                yield StudyRun(
                    f"{net}-sin10k-{data}-{method}",
                    pretrain_by_method(net, method),
                    data,
                    paper=figures[i] if figures else None,
                    baseline=base if method != "supervised" else "",
                    note="" if figures else failed,
                    pretrain_data="sin10k",
                )


def _before_and_after() -> Iterator[StudyRun]:
    """Use the stages of Table 2. The paper does not name the classes it shows, and the figure cannot be read."""
    data, base = "flowers102", "deit-tiny-flowers102-random"
    yield StudyRun(base, TsneTask(finetune_only("deit-tiny", 200)), data, cell=("", RANDOM))
    methods: tuple[MethodName, ...] = (*TABLE_2, "byol")
    for method in methods:
        task, note = TsneTask(pretrain_by_method("deit-tiny", method)), NOT_THERE if method == "byol" else ""
        run = StudyRun(f"deit-tiny-{data}-{method}", task, data, baseline=base, note=note)
        yield replace(run, cell=("", TITLES[method]))


def _lengths() -> Iterator[StudyRun]:
    """Pre-train for several lengths, the last of which is Table 2's.

    Only the caption of Figure 4 can be read ("for the same epochs"), neither its axes nor its numbers.
    """
    data, base = "flowers102", "deit-tiny-flowers102-random"
    yield StudyRun(base, finetune_only("deit-tiny", 200), data, paper=RANDOM_2[0])
    for epochs in LENGTHS:
        for method, figures in TABLE_2.items():
            name, task = f"deit-tiny-{data}-{method}-{epochs}", pretrain_by_method("deit-tiny", method, 200, epochs)
            yield StudyRun(name, task, data, paper=figures[0] if epochs == 800 else None, baseline=base)
