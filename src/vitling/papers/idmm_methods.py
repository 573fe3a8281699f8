"""Tables and figures of the IDMM paper that compare methods of pre-training.

The paper's figures are single runs. The settings of each method are Table 10's (the settings.py of each method).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vitling.methods import METHODS, MethodName
from vitling.methods.method import SIZE
from vitling.papers.idmm_recipes import COLUMNS, NETWORKS, finetune_only, pretrain_and_finetune, pretrain_by_method
from vitling.papers.locations import DATASETS
from vitling.papers.stages import FinetuneTask
from vitling.papers.study import Study, StudyRun
from vitling.papers.tsne import TsneTask

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
BYOL: MethodName = "byol"
NOT_THERE = "not in the paper"

METHODS_T2: tuple[MethodName, ...] = ("simclr", "supcon", "moco-v2", "moco-v3", "dino", "idmm")
METHODS_T5: tuple[MethodName, ...] = ("idmm", "simclr", "supcon")
METHODS_T6: tuple[MethodName, ...] = ("supervised", "moco-v3", "dino", "idmm")
BY_SGD: tuple[MethodName, ...] = ("simclr", "supcon", "moco-v2")
MOCO_LR = 0.03  # MoCo v2's own paper, for batches of 256

CORNER = ("flowers102", "cifar100-10k")  # the labelled datasets
CORNER_BEFORE = (*CORNER, "camvid")
CORNER_METHODS: tuple[MethodName, ...] = ("idmm", "simclr")
CORNER_EPOCHS, CORNER_SIZE = (200, 100), 112  # epochs of Flowers-102 before and after; pixels of both stages


def studies() -> tuple[Study, ...]:
    """List the studies that compare methods."""
    paper, matrix, new = "IDMM,", "pre-trained on one dataset, fine-tuned on another", Study.from_runs
    pre, fine = CORNER_EPOCHS
    seen = f"as many images as {pre} epochs of Flowers-102 show, then {fine} epochs, all at {CORNER_SIZE} px"
    nearest = "leave-one-out 5-NN among test images of ten classes before fine-tuning, %"
    return (
        new("idmm-t2", "methods of pre-training", f"{paper} Table 2", _methods()),
        new("idmm-t2-causes", "possible causes of the gap to Table 2's baselines", f"{paper} Table 2", _optimisers()),
        new("idmm-t5", matrix, f"{paper} Table 5", _transfer(), picture="heatmap"),
        new("idmm-t5-corner", f"{matrix}, shortened: {seen}", f"after {paper} Table 5", _corner(), picture="heatmap"),
        new("idmm-t6", "after 10,000 images of ImageNet", f"{paper} Table 6", _ten_thousand()),
        new("idmm-f2", "t-SNE of ten classes", f"{paper} Figure 2", _before_and_after(), nearest, picture="tsne"),
        new("idmm-f4", "methods by length of pre-training", f"{paper} Figure 4 and Table 2", _lengths()),
    )


def _methods() -> Iterator[StudyRun]:
    """Compare the methods of Table 2, and BYOL, which is not in the paper."""
    for data in COLUMNS:
        base = f"deit-tiny-{data}-random"
        yield StudyRun(base, finetune_only("deit-tiny", 200), data)
        for method in (*METHODS_T2, BYOL):
            task, note = pretrain_by_method("deit-tiny", method), NOT_THERE if method == BYOL else ""
            yield StudyRun(f"deit-tiny-{data}-{method}", task, data, baseline=base, note=note)


def _optimisers() -> Iterator[StudyRun]:
    """Vary what may explain the gap to Table 2's baselines.

    Table 10 gives three methods SGD at 5e-4, a sixtieth of the learning rate in MoCo v2's own paper. Here they use
    IDMM's optimiser instead, and SGD at MoCo v2's 0.03 for each 256 images. MoCo v2, whose queue is longer than the
    dataset, also masks an image's own keys. SimCLR and SupCon also have AdamW and a temperature of 0.5, which a path
    in the released scripts names for SupCon. DINO has 256 prototypes, another reading of Table 10's "dim 256". Each is
    compared with the method as Table 10 has it.
    """
    data, backbone = "flowers102", NETWORKS["deit-tiny"]
    for method in BY_SGD:
        name = f"deit-tiny-{data}-{method}"
        yield StudyRun(name, pretrain_by_method("deit-tiny", method), data)
        recipe = METHODS[method].recipe(backbone, "paper", 800, SIZE)
        changes = {
            "-adamw": METHODS[method].recipe(backbone, "adamw", 800, SIZE),
            "-sgd0.03": replace(recipe, optim=replace(recipe.optim, lr=MOCO_LR * recipe.batch / 256)),
        }
        if method == "moco-v2":
            changes["-mask-own"] = replace(recipe, objective=replace(recipe.objective, mask_own=True))
        else:
            adamw = changes["-adamw"]
            changes["-adamw-t0.5"] = replace(adamw, objective=replace(adamw.objective, temperature=0.5))
        for change, changed in changes.items():
            task = pretrain_and_finetune(changed, 200, method=method)
            yield StudyRun(f"{name}{change}", task, data, baseline=name)
    name, recipe = f"deit-tiny-{data}-dino", METHODS["dino"].recipe(backbone, "paper", 800, SIZE)
    yield StudyRun(name, pretrain_by_method("deit-tiny", "dino"), data)
    few = replace(recipe, objective=replace(recipe.objective, prototypes=256))
    yield StudyRun(f"{name}-256", pretrain_and_finetune(few, 200, method="dino"), data, baseline=name)


def _make_transfer(method: MethodName, source: str, data: str, task: FinetuneTask) -> StudyRun:
    """Make a cell of the matrix; on its diagonal there is one dataset."""
    return StudyRun(
        f"pvtv2-b0-{method}-{source}-to-{data}",
        task,
        data,
        baseline=f"pvtv2-b0-random-to-{data}",
        pretrain_data=source if source != data else "",
        cell=(f"{source}, {TITLES[method]}", data),
    )


def _transfer() -> Iterator[StudyRun]:
    """List the matrix column by column, Flowers-102 first.

    `--only to-cars` is a column, `--only cars-to` what was pre-trained on cars, `--only cars` both.
    """
    for data in COLUMNS:
        yield StudyRun(f"pvtv2-b0-random-to-{data}", finetune_only("pvtv2-b0", 200), data, cell=(RANDOM, data))
        for source in COLUMNS:
            for method in METHODS_T5:
                yield _make_transfer(method, source, data, pretrain_by_method("pvtv2-b0", method))


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
    for net in ("pvtv2-b0", "pvtv2-b3", "t2t-vit-7"):
        for data in COLUMNS:
            base = f"{net}-sin10k-{data}"
            for method in METHODS_T6:
                failed = net == "t2t-vit-7" and method in ("moco-v3", "dino")
                yield StudyRun(
                    f"{base}-{method}",
                    pretrain_by_method(net, method),
                    data,
                    baseline=f"{base}-supervised" if method != "supervised" else "",
                    note="the paper: does not converge, whatever was tried" if failed else "",
                    pretrain_data="sin10k",
                )


def _before_and_after() -> Iterator[StudyRun]:
    """Use the stages of Table 2. The paper does not name the classes it shows, and the figure cannot be read."""
    data, base = "flowers102", "deit-tiny-flowers102-random"
    yield StudyRun(base, TsneTask(finetune_only("deit-tiny", 200)), data, cell=("", RANDOM))
    for method in (*METHODS_T2, BYOL):
        name, task = f"deit-tiny-{data}-{method}", TsneTask(pretrain_by_method("deit-tiny", method))
        note = NOT_THERE if method == BYOL else ""
        yield StudyRun(name, task, data, baseline=base, note=note, cell=("", TITLES[method]))


def _lengths() -> Iterator[StudyRun]:
    """Pre-train for several lengths, the last of which is Table 2's.

    Only the caption of Figure 4 can be read ("for the same epochs"), neither its axes nor its numbers.
    """
    data, base = "flowers102", "deit-tiny-flowers102-random"
    yield StudyRun(base, finetune_only("deit-tiny", 200), data)
    for epochs in (100, 200, 400, 800):
        for method in METHODS_T2:
            task = pretrain_by_method("deit-tiny", method, 200, epochs)
            yield StudyRun(f"deit-tiny-{data}-{method}-{epochs}", task, data, baseline=base)
