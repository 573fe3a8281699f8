"""The papers' views by name, as plans. The numbers are those of each method's paper or released code."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from vitling.errors import UserError
from vitling.views.plan import Blur, Flip, Grey, Group, Jitter, Mix, Plan, Policy, RandAugment, Rescale, Solarise, Step

LARGE_JITTER = (0.1, 2.0)  # of the canvas: Ghiasi et al., Simple Copy-Paste
DISTORTION = Jitter(0.125, 0.5, 0.5, 0.1, prob=0.5)  # mmseg's PhotoMetricDistortion: 32/255, 0.5, 0.5, 18/180


def supervised(size: int = 224) -> Plan:
    """DRLoc, Swin and DeiT: RandAugment, erasing, mixup or CutMix with one draw per batch."""
    policy = Policy(steps=(Flip(), RandAugment("timm")), erase=0.25)
    return Plan((Group(size, policy=policy, mix=Mix(mixup=0.8, cutmix=1.0, per="batch")),))


def idmm_pretrain(size: int = 112) -> Plan:
    """IDMM: two global and four local crops of the same size, CutMix within each group at every step."""
    steps: tuple[Step, ...] = (Flip(), Jitter(0.8, 0.8, 0.8, 0.2, prob=0.8), Grey(0.2), Blur(0.5))
    mix = Mix(cutmix=0.5, per="batch", fold=True)
    wide = Policy(scale=(0.14, 1.0), filter="bilinear", steps=steps)
    narrow = Policy(scale=(0.05, 0.4), filter="bilinear", steps=steps)
    return Plan((Group(size, 2, wide, mix), Group(size, 4, narrow, mix)))


def idmm_finetune(size: int = 224) -> Plan:
    """IDMM's second stage: mixup in even epochs, CutMix in odd ones; the flip comes last."""
    steps: tuple[Step, ...] = (Jitter(0.4, 0.4, 0.4, 0.1, prob=0.4), Grey(0.2), RandAugment("uda"), Flip())
    mix = Mix(mixup=0.5, cutmix=0.5, per="batch", fold=True, turns="epochs")
    return Plan((Group(size, policy=Policy(steps=steps), mix=mix),))


def dino(size: int = 224, local_size: int = 96, local_count: int = 8, global_count: int = 2) -> Plan:
    """DINO and EsViT: global views that differ in blur and solarise, and local ones.

    All global views after the first are like the second.
    """

    def policy(scale: tuple[float, float], blur: float, solarise: float = 0.0) -> Policy:
        return Policy(scale=scale, steps=_two_view_steps(blur, solarise))

    wide, narrow = (0.4, 1.0), (0.05, 0.4)
    groups = [Group(size, 1, policy(wide, 1.0))]
    if global_count > 1:
        groups.append(Group(size, global_count - 1, policy(wide, 0.1, 0.2)))
    if local_count:
        groups.append(Group(local_size, local_count, policy(narrow, 0.5)))
    return Plan(tuple(groups))


def simclr(size: int = 224) -> Plan:
    """SimCLR with colour strength 1."""
    steps: tuple[Step, ...] = (Flip(), Jitter(0.8, 0.8, 0.8, 0.2, prob=0.8), Grey(0.2), Blur(0.5))
    return Plan((Group(size, 2, Policy(steps=steps)),))


def moco_v2(size: int = 224) -> Plan:
    """MoCo v2: milder colour jitter, crops of at least a fifth of the image."""
    steps: tuple[Step, ...] = (Jitter(0.4, 0.4, 0.4, 0.1, prob=0.8), Grey(0.2), Blur(0.5), Flip())
    return Plan((Group(size, 2, Policy(scale=(0.2, 1.0), filter="bilinear", steps=steps)),))


def byol(size: int = 224) -> Plan:
    """BYOL: two views that differ in blur and solarise."""
    first, second = (Policy(steps=_two_view_steps(*chances)) for chances in ((1.0, 0.0), (0.1, 0.2)))
    return Plan((Group(size, 1, first), Group(size, 1, second)))


def moco_v3(size: int = 224) -> Plan:
    """MoCo v3 for ViTs: BYOL's two views."""
    return byol(size)


def evaluation(size: int = 224) -> Plan:
    """Evaluation: the shorter side resized to 8/7 of the size, then the centre crop; nothing random."""
    return Plan((Group(size, policy=Policy(centre=0.875, steps=())),))


def detection(size: int = 1344) -> Plan:
    """Detection: whole images, the shorter side 480 to 800 px and the longer at most 1333 on a canvas of 1344, flip."""
    unit = size / 1344
    return _make_dense_plan(size, Rescale((480 * unit, 800 * unit), longest=1333 * unit))


def large_scale_jitter(size: int = 1024) -> Plan:
    """Detection with large-scale jitter: the longer side 0.1 to 2 times the canvas, random crop, flip."""
    return _make_dense_plan(size, Rescale((size, size), longest=size, factor=LARGE_JITTER, random_crop=True))


def segmentation(size: int = 512) -> Plan:
    """Segmentation: the shorter side 0.5 to 2 times the crop, random crop, flip, photometric distortion."""
    rescale = Rescale((size, size), longest=4 * size, factor=(0.5, 2.0), random_crop=True)
    return _make_dense_plan(size, rescale, (Flip(), DISTORTION))


def _make_dense_plan(size: int, rescale: Rescale, steps: tuple[Step, ...] = (Flip(),)) -> Plan:
    policy = Policy(filter="bilinear", rescale=rescale, steps=steps)
    return Plan((Group(size, policy=policy, return_boxes=True),))


def _two_view_steps(blur: float, solarise: float) -> tuple[Step, ...]:
    steps: tuple[Step, ...] = (Flip(), Jitter(0.4, 0.4, 0.2, 0.1, prob=0.8), Grey(0.2), Blur(blur))
    return (*steps, Solarise(solarise)) if solarise else steps


POLICIES: dict[str, Callable[..., Plan]] = {
    "supervised": supervised,
    "idmm-pretrain": idmm_pretrain,
    "idmm-finetune": idmm_finetune,
    "dino": dino,
    "simclr": simclr,
    "moco-v2": moco_v2,
    "moco-v3": moco_v3,
    "byol": byol,
    "eval": evaluation,
    "detection": detection,
    "large-scale-jitter": large_scale_jitter,
    "segmentation": segmentation,
}
POLICY_OF_METHOD = {"idmm": "idmm-pretrain", "supcon": "simclr", "esvit": "dino", "densecl": "moco-v2"}


def _suggest(name: str) -> str:
    if name in POLICY_OF_METHOD:
        return f" The views of {name} are {POLICY_OF_METHOD[name]}."
    near = get_close_matches(name, POLICIES, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def make_plan(name: str, size: int | None = None) -> Plan:
    """Build a plan by name, at its default size or another."""
    if name not in POLICIES:
        raise UserError(f"There is no policy {name!r}; choose one of {', '.join(POLICIES)}.{_suggest(name)}")
    return POLICIES[name]() if size is None else POLICIES[name](size)
