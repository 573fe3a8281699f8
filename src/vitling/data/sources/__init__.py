"""From what a person writes to a data set.

images/                                  class folders, with or without train/val/test; or flat
list.csv  list.tsv                       a path a row
part.parquet  folder/  "train-*.parquet" Hugging Face's Parquet
part.tar  folder/  "d-{000..003}.tar"    WebDataset, or class folders in a tar
arrays.npz                               x, y; or x_train, y_train, x_test, y_test
torchvision:CIFAR100?root=DIR            a data set of torchvision's
flowers102:DIR                           a data set of the papers, as distributed (vitling.papers)
embedded:digits[?labels=100&seed=0]      1,797 digits, at hand; so many of them with labels, the rest a pool
train=SPEC,test=SPEC[,val=SPEC][,pool=SPEC]   each split from its own
"""

from __future__ import annotations

import difflib
import glob
import importlib
import re
from dataclasses import replace
from pathlib import Path

from vitling.data.config import DataConfig
from vitling.data.schemes import READERS
from vitling.data.sources.source import Source, separate_unlabelled
from vitling.errors import UserError

NAMED_SPLIT = re.compile(r"(?:^|,)(train|val|test|pool)=")
SCHEMES = {"torchvision": "tv", "embedded": "embedded"}
SINGLE_FILES = {".csv": "table", ".tsv": "table", ".npz": "arrays"}
SHARDS = {".parquet": "parquet", ".tar": "tar"}


def read_source(spec: str, config: DataConfig) -> Source:
    """The splits, labels and notes that `spec` leads to."""
    found = _read(spec, config)
    separate_unlabelled(found)  # here, when it is known which split each image is of
    return found


def _read(spec: str, config: DataConfig) -> Source:
    if NAMED_SPLIT.match(spec):
        return _read_named(spec, config)
    scheme, _, rest = spec.partition(":")
    if scheme in SCHEMES:
        return _module(SCHEMES[scheme]).read(rest, config)
    if scheme in READERS and ":" in spec:
        return READERS[scheme](rest)
    path = Path(spec).expanduser()
    if path.is_dir():
        return _read_folder(path, config)
    if path.is_file():
        return _read_files([path], path.stem, config)
    if matches := _expand(str(path)):
        return _read_files(matches, _pattern_name(path), config)
    if rest and (close := difflib.get_close_matches(scheme, [*SCHEMES, *READERS], n=3)):
        known = f"Did you mean {' or '.join(f'{name}:{rest}' for name in close)}?"
        raise UserError(f"There is no data set {scheme!r}. {known} `vitling list datasets` shows them.")
    raise _not_there(path)


def _module(name: str):
    return importlib.import_module(f"vitling.data.sources.{name}")


def _read_folder(path: Path, config: DataConfig) -> Source:
    found = _module("folder").read(path, config)
    if found.splits:
        return found
    for suffix, module in SHARDS.items():
        if shards := sorted(path.rglob(f"*{suffix}")):
            return _module(module).read(shards, path.resolve().name, config)
    return found


def _read_files(paths: list[Path], name: str, config: DataConfig) -> Source:
    suffix = paths[0].suffix.lower()
    if suffix in SHARDS:
        return _module(SHARDS[suffix]).read(paths, name, config)
    if suffix in SINGLE_FILES and len(paths) == 1:
        return _module(SINGLE_FILES[suffix]).read(paths[0], config)
    kinds = ", ".join([*SINGLE_FILES, *SHARDS])
    raise UserError(f"{paths[0]} is no data set. Name a folder of images, or a file that ends in {kinds}.")


def _read_named(spec: str, config: DataConfig) -> Source:
    words = NAMED_SPLIT.split(spec)[1:]
    found, spare = Source(""), None
    for split, inner in zip(words[::2], words[1::2]):
        if split in found.splits:
            raise UserError(f"{split}= is there twice in {spec}")
        source = _read(inner, config)
        own = _own_split(source, split, inner)
        found.splits[split] = source.splits[own]
        found.notes += source.notes
        found.bad += [replace(file, split=split) for file in source.bad if file.split == own]
        found.multi |= source.multi
        if split == "train":
            found.name, found.class_order = source.name, source.class_order
            spare = source.splits.get("pool")
    if spare is not None:
        found.splits.setdefault("pool", spare)
    return found


def _own_split(source: Source, split: str, spec: str) -> str:
    """What the source itself calls it: by that name, or another where it has no other images (but unlabelled ones)."""
    if split in source.splits:
        return split
    labelled = [name for name in source.splits if name != "pool"] or list(source.splits)
    if len(labelled) == 1:
        return labelled[0]
    has = ", ".join(source.splits) or "no images"
    raise UserError(f"{split}={spec}: it has {has}, and not {split}. Name a folder or file of that split alone.")


def _pattern_name(path: Path) -> str:
    """`cifar100-*.parquet` is cifar100; `*.tar` has the name of its folder."""
    return re.split(r"[*?{\[]", path.name)[0].strip("-_. ") or path.resolve().parent.name


def _expand(pattern: str) -> list[Path]:
    """Files behind braces ({000..003}, {a,b}) and wildcards; a number's zeros are kept."""
    brace = re.search(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}", pattern)
    if brace is None:
        return [Path(path) for path in sorted(glob.glob(pattern, recursive=True)) if Path(path).is_file()]
    first, last, words = brace.groups()
    if words is None:
        words_list = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    else:
        words_list = words.split(",")
    found = [_expand(pattern[: brace.start()] + word + pattern[brace.end() :]) for word in words_list]
    missing = [word for word, paths in zip(words_list, found) if not paths]
    if missing and any(found):
        raise UserError(f"{pattern}: there is no file for {missing[0]}.")
    return [path for paths in found for path in paths]


def _not_there(path: Path) -> UserError:
    wrong, folder = path, path.parent
    while not folder.is_dir():
        wrong, folder = folder, folder.parent
    names = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]
    close = difflib.get_close_matches(wrong.name, names, n=3, cutoff=0.5)
    here = [str(folder / name) for name in close]
    near = " or ".join([*_data_sets_named(str(path)), *here])
    hint = f"Did you mean {near}?" if near else f"Nothing in {folder.resolve()} has a name like it."
    return UserError(f"{path} does not exist. {hint}")


def _data_sets_named(words: str) -> list[str]:
    """How a data set is written that was named without its scheme, or without its folder."""
    every = {"digits": "embedded:digits", **{name: f"{name}:DIR" for name in READERS}}
    return [every[words.lower()]] if words.lower() in every else []
