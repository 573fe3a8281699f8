"""UCF101 as images: the middle frame of each video, from frames that somebody extracted or out of the video itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vitling.data.sources.source import IMAGE_SUFFIXES, Source, SourceSplit
from vitling.errors import UserError
from vitling.papers.datasets.files import Copy, listed, words

GROUP = re.compile(r"_(g\d+)_c\d+$")
PLACES = ("UCF-101", "UCF101", "frames", ".")


class MiddleFrameReader:
    """Row i is the middle frame of videos[i]."""

    def __init__(self, folder: Path, videos: list[str]):
        self.folder, self.videos = folder, videos

    def __call__(self, row: int) -> np.ndarray:
        with _av().open(str(self.folder / self.videos[row])) as video:
            stream = video.streams.video[0]
            count = stream.frames or sum(1 for _ in video.decode(stream))
            video.seek(0)
            return _at(video.decode(stream), count // 2)


def ucf101(copy: Copy) -> Source:
    """ucfTrainTestlist/trainlist01.txt: `ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi 1`. A video may be there as .avi,
    as a folder of frames of its name, or as one image of its name."""
    split = copy.choice("split", 3)
    order = [line.split()[1] for line in copy.lines("ucfTrainTestlist/classInd.txt", "classInd.txt")]
    found = Source(copy.entry.name, class_order=tuple(order))
    for part in ("train", "test"):
        lines = copy.lines(f"ucfTrainTestlist/{part}list{split:02d}.txt", f"{part}list{split:02d}.txt")
        found.splits[part] = _part(copy, [line.split()[0].removesuffix(".avi") for line in lines])
    return found


def _part(copy: Copy, clips: list[str]) -> SourceSplit:
    labels = words([clip.split("/")[0] for clip in clips])
    groups = [_group(clip) for clip in clips]
    folder = _folder(copy, clips[0])
    if (folder / f"{clips[0]}.avi").exists():
        _av()  # said now, not for each video
        reader = MiddleFrameReader(folder, [f"{clip}.avi" for clip in clips])
        return SourceSplit(clips, reader, np.arange(len(clips)), labels, groups)
    return listed(folder, [_frame(folder, clip) for clip in clips], labels, groups)


def _folder(copy: Copy, clip: str) -> Path:
    for place in (copy.root / name for name in PLACES):
        if (place / f"{clip}.avi").exists() or (place / clip).is_dir() or _images((place / clip).parent, clip):
            return place
    places = ", ".join(f"{name}/" for name in PLACES[:-1])
    raise UserError(f"{copy.root} has no {clip}.avi, and no frames of it (looked in {places} and beside the lists).")


def _frame(folder: Path, clip: str) -> str:
    """The middle one of a folder of frames, or the one image there is."""
    if (folder / clip).is_dir():
        frames = sorted(file.name for file in (folder / clip).iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
        return f"{clip}/{frames[len(frames) // 2]}" if frames else clip
    return next(iter(_images((folder / clip).parent, clip)), f"{clip}.jpg")


def _images(folder: Path, clip: str) -> list[str]:
    names = (f"{clip.rpartition('/')[2]}{suffix}" for suffix in (".jpg", ".jpeg", ".png"))
    return [f"{clip.rpartition('/')[0]}/{name}" for name in names if (folder / name).exists()]


def _group(clip: str) -> str:
    """`ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01`: clips of g08 are cut from one video."""
    found = GROUP.search(clip)
    return f"{clip.split('/')[0]} {found[1]}" if found else clip


def _at(frames: Iterable[Any], index: int) -> np.ndarray:
    """The last one, if there are fewer than a container says."""
    last = None
    for last in islice(frames, index + 1):  # noqa: B007
        pass
    if last is None:
        raise ValueError("no frame in the video")
    return last.to_ndarray(format="rgb24")


def _av() -> Any:
    try:
        import av
    except ImportError:
        raise UserError(
            "Videos are decoded by PyAV, which is not here: pip install 'vitling[video]', or extract the middle frame "
            "of each video as an image of the same name."
        ) from None
    return av
