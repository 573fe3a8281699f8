"""Sources: readers for every form of DATA.

images/                                  class folders, with or without train/val/test; or flat
list.csv  list.tsv                       one path per row
part.parquet  folder/  "train-*.parquet" Parquet as written by Hugging Face
part.tar  folder/  "d-{000..003}.tar"    WebDataset, or class folders in a tar
arrays.npz                               x, y; or x_train, y_train, x_test, y_test
torchvision:CIFAR100?root=DIR            a torchvision dataset
flowers102:DIR                           a dataset of the papers, as distributed (vitling.papers.datasets)
embedded:digits[?labels=100&seed=0]      1,797 digits, no download; optionally only some labelled, the rest a pool
train=SPEC,test=SPEC[,val=SPEC][,pool=SPEC]   one DATA per split
"""

from __future__ import annotations

import difflib
import importlib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, product
from pathlib import Path

from vitling.data.config import DataConfig
from vitling.data.sources.layout import make_printable
from vitling.data.sources.schemes import READERS
from vitling.data.sources.source import Source, separate_unlabelled
from vitling.errors import UserError
from vitling.formatting import join_or
from vitling.loading import MAX_DIGITS, expand_home, find_matches

NAMED_SPLIT = re.compile(r"(?:^|,)(train|val|test|pool)=")
_BRACE = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}")
MAX_NAMES = 100_000  # that the braces of one pattern may stand for
SCHEMES = {"torchvision": "tv", "embedded": "embedded"}  # to modules of this package, as below
SINGLE_FILES = {".csv": "table", ".tsv": "table", ".npz": "arrays"}
SHARDS = {".parquet": "parquet", ".tar": "tar"}


def read_source(spec: str, config: DataConfig, labels: str | None = None) -> Source:
    """Read the splits, labels and notes of `spec`; `labels` names a CSV of corrected labels."""
    source = _read(spec, config)
    _make_names_printable(source)
    separate_unlabelled(source)  # only now is it known which split each image belongs to
    if labels is not None:
        _import_reader("corrections").correct_labels(source, labels)
    return source


def _make_names_printable(source: Source) -> None:
    """Escape names that UTF-8 cannot write: half surrogates, from file names and from JSON."""
    source.class_order = source.class_order and tuple(map(make_printable, source.class_order))
    for split in source.splits.values():
        if not _is_printable(split.keys):
            split.keys = list(map(make_printable, split.keys))
        if split.labels and not _is_printable({word for words in split.labels for word in words}):
            split.labels = [tuple(map(make_printable, words)) for words in split.labels]


def _is_printable(names: Iterable[str]) -> bool:
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        return False
    return True


def _read(spec: str, config: DataConfig) -> Source:
    if NAMED_SPLIT.match(spec):
        return _read_named(spec, config)
    scheme, _, rest = spec.partition(":")
    if scheme in SCHEMES:
        return _import_reader(SCHEMES[scheme]).read(rest, config)
    if scheme in READERS and ":" in spec:
        return READERS[scheme](rest)
    if rest.startswith("//"):
        raise UserError(f"{spec} is a URL. Download the files and pass their folder or archive.")
    path = expand_home(spec)
    names = _expand_braces(str(path))
    if path.is_dir():
        return _read_folder(path, config)
    if path.is_file():
        return _read_files([path], path.stem, config)
    if matches := _find_files(spec, names):
        return _read_files(matches, _name_pattern(path), config)
    if rest and (close := difflib.get_close_matches(scheme, [*SCHEMES, *READERS], n=3)):
        hint = f"Did you mean {join_or([f'{name}:{rest}' for name in close])}?"
        raise UserError(f"Unknown dataset {scheme!r}. {hint} `vitling list datasets` shows all.")
    raise _make_missing_path_error(path)


def _import_reader(name: str):
    return importlib.import_module(f"vitling.data.sources.{name}")


def _read_folder(path: Path, config: DataConfig) -> Source:
    source = _import_reader("folder").read(path, config)
    if source.splits:
        return source
    for suffix, module in SHARDS.items():
        if shards := sorted(path.rglob(f"*{suffix}")):
            return _import_reader(module).read(shards, path.resolve().name, config)
    return source


def _read_files(paths: list[Path], name: str, config: DataConfig) -> Source:
    suffix = paths[0].suffix.lower()
    if suffix in SHARDS:
        return _import_reader(SHARDS[suffix]).read(paths, name, config)
    if suffix in SINGLE_FILES and len(paths) == 1:
        return _import_reader(SINGLE_FILES[suffix]).read(paths[0], config)
    kinds = ", ".join([*SINGLE_FILES, *SHARDS])
    raise UserError(f"{paths[0]} is not a dataset. Pass a folder of images or a file that ends in {kinds}.")


def _read_named(spec: str, config: DataConfig) -> Source:
    words = NAMED_SPLIT.split(spec)[1:]
    merged, pool = Source(""), None
    for name, inner in zip(words[::2], words[1::2]):
        if name in merged.splits:
            raise UserError(f"{spec} has {name}= twice.")
        source = _read(inner, config)
        own_name = _choose_split(source, name, inner)
        merged.splits[name] = source.splits[own_name]
        merged.notes += source.notes
        merged.bad += [replace(file, split=name) for file in source.bad if file.split == own_name]
        merged.multi |= source.multi
        if name == "train":
            merged.name, merged.class_order = source.name, source.class_order
            pool = source.splits.get("pool")
    if pool is not None:
        merged.splits.setdefault("pool", pool)
    return merged


def _choose_split(source: Source, wanted: str, spec: str) -> str:
    """Choose the source's split of that name, or else its only one (not counting the pool)."""
    if wanted in source.splits:
        return wanted
    labelled = [name for name in source.splits if name != "pool"] or list(source.splits)
    if len(labelled) == 1:
        return labelled[0]
    has = ", ".join(source.splits) or "no images"
    raise UserError(f"{wanted}={spec} has {has}, but not {wanted}. Pass a folder or file with that split alone.")


def _name_pattern(path: Path) -> str:
    """Name a dataset after its pattern: cifar100 for `cifar100-*.parquet`, the folder's name for `*.tar`."""
    return re.split(r"[*?{\[]", path.name)[0].strip("-_. ") or path.resolve().parent.name


def _expand_braces(pattern: str) -> Iterator[str]:
    """List what the braces of a pattern ({000..003}, {a,b}) stand for; numbers keep their leading zeros."""
    parts = _BRACE.split(pattern)  # some text; then first, last, words and more text for each pair of braces
    texts, braces = parts[::4], list(zip(parts[1::4], parts[2::4], parts[3::4]))
    numbers = [number for first, last, _ in braces for number in (first, last) if number]
    if any(len(number) > MAX_DIGITS for number in numbers):
        raise UserError(f"{pattern[:200]}: a number in braces has over {MAX_DIGITS} digits. Use * instead.")
    choices = [words.split(",") if words else range(int(first), int(last) + 1) for first, last, words in braces]
    if choices and "**" in pattern:
        raise UserError(f"{pattern[:200]}: braces and ** cannot be combined. Use * in place of the braces.")
    if math.prod(max(1, len(some)) for some in choices) > MAX_NAMES:
        raise UserError(f"{pattern[:200]}: its braces stand for more than {MAX_NAMES:,} files. Use * in their place.")
    spelled = [[str(choice).zfill(len(first or "")) for choice in some] for some, (first, _, _) in zip(choices, braces)]
    return ("".join(chain(*zip(texts, (*chosen, "")))) for chosen in product(*spelled))


def _find_files(pattern: str, names: Iterable[str]) -> list[Path]:
    """Find the files with these names, which may have wildcards; either all names have one or none has."""
    files: list[Path] = []
    missing = ""
    for name in names:
        found = [path for path in find_matches(name) if path.is_file()]
        files += found
        missing = missing or ("" if found else name)
    if files and missing:
        raise UserError(f"{pattern}: there is no file for {missing}.")
    return files


def _make_missing_path_error(path: Path) -> UserError:
    wrong, folder = path, path.parent
    while not folder.is_dir():
        wrong, folder = folder, folder.parent
    names = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]
    close = difflib.get_close_matches(wrong.name, names, n=3, cutoff=0.5)
    suggestions = join_or([*_suggest_scheme(str(path)), *(str(folder / name) for name in close)])
    hint = f"Did you mean {suggestions}?" if suggestions else f"Nothing in {folder.resolve()} has a similar name."
    return UserError(f"{path} does not exist. {hint}")


def _suggest_scheme(name: str) -> list[str]:
    """Suggest the full form of a dataset that was given without its scheme or folder."""
    forms = {"digits": "embedded:digits", **{scheme: f"{scheme}:DIR" for scheme in READERS}}
    return [forms[name.lower()]] if name.lower() in forms else []
