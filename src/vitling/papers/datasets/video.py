"""UCF101 as images: the middle frame of each video, from extracted frames or from the video itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vitling.data.sources.source import IMAGE_SUFFIXES
from vitling.errors import UserError
from vitling.loading import check_regular
from vitling.papers.datasets.files import Copy

GROUP = re.compile(r"_(g\d+)_c\d+$")
PLACES = ("UCF-101", "UCF101", "frames", ".")


class MiddleFrameReader:
    """Reader of the middle frame of videos[row]."""

    def __init__(self, folder: Path, videos: list[str]):
        self.folder, self.videos = folder, videos

    def __call__(self, row: int) -> np.ndarray:
        check_regular(self.folder / self.videos[row])
        with _import_av().open(str(self.folder / self.videos[row]), format="avi") as video:
            stream = video.streams.video[0]
            count = stream.frames or sum(1 for _ in video.decode(stream))
            video.seek(0)
            return _take_frame(video.decode(stream), count // 2)


def read_ucf101(copy: Copy) -> None:
    """Read ucfTrainTestlist/trainlist01.txt: `ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01.avi 1`.

    A video may be there as .avi, as a folder of frames of its name, or as one image of its name.
    """
    number = copy.pop_number("split", 3)
    copy.order_classes(line.split()[1] for line in copy.read_lines("ucfTrainTestlist/classInd.txt", "classInd.txt"))
    for split in ("train", "test"):
        name = f"{split}list{number:02d}.txt"
        lines = copy.read_lines(f"ucfTrainTestlist/{name}", name)
        _add_clips(copy, split, [line.split()[0].removesuffix(".avi") for line in lines])


def _add_clips(copy: Copy, split: str, clips: list[str]) -> None:
    names, groups = [clip.split("/")[0] for clip in clips], [_name_group(clip) for clip in clips]
    folder = _find_folder(copy, clips[0])
    if (folder / f"{clips[0]}.avi").exists():
        _import_av()  # fail now, not at each video
        reader = MiddleFrameReader(folder, [f"{clip}.avi" for clip in clips])
        copy.add_split(split, clips, reader, names, groups)
    else:
        copy.add_files(split, folder, [_find_frame(folder, clip) for clip in clips], names, groups)


def _find_folder(copy: Copy, clip: str) -> Path:
    for place in (copy.root / name for name in PLACES):
        if (place / f"{clip}.avi").exists() or (place / clip).is_dir() or _list_images(place, clip):
            return place
    places = ", ".join(f"{name}/" for name in PLACES[:-1])
    raise UserError(f"{copy.root} has no {clip}.avi, and no frames of it, in {places} or next to the lists.")


def _find_frame(folder: Path, clip: str) -> str:
    """Find the middle one of a folder of frames, or the one image there is."""
    if (folder / clip).is_dir():
        frames = sorted(file.name for file in (folder / clip).iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
        return f"{clip}/{frames[len(frames) // 2]}" if frames else clip
    return next(iter(_list_images(folder, clip)), f"{clip}.jpg")


def _list_images(folder: Path, clip: str) -> list[str]:
    names = (f"{clip}{suffix}" for suffix in (".jpg", ".jpeg", ".png"))
    return [name for name in names if (folder / name).exists()]


def _name_group(clip: str) -> str:
    """Name the group of `ApplyEyeMakeup/v_ApplyEyeMakeup_g08_c01`: clips of g08 are cut from one video."""
    found = GROUP.search(clip)
    return f"{clip.split('/')[0]} {found[1]}" if found else clip


def _take_frame(frames: Iterable[Any], index: int) -> np.ndarray:
    """Return the frame at `index`, or the last one if there are fewer than the container says."""
    last = None
    for last in islice(frames, index + 1):  # noqa: B007
        pass
    if last is None:
        raise ValueError("no frame in the video")
    return last.to_ndarray(format="rgb24")


def _import_av() -> Any:
    try:
        import av
    except ImportError:
        raise UserError(
            "Decoding videos needs PyAV: pip install 'vitling[video]'. Or extract the middle frame of each video as an "
            "image of the same name."
        ) from None
    return av
