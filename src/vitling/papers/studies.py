"""All studies, found by name. No torch here."""

from __future__ import annotations

from difflib import get_close_matches

from vitling.errors import UserError
from vitling.formatting import join_or
from vitling.papers import dense, drloc, esvit, idmm, idmm_methods, small
from vitling.papers.study import Study


def all_studies() -> tuple[Study, ...]:
    """List the studies of all papers, and ours."""
    modules = (drloc, idmm, idmm_methods, esvit, dense, small)
    return tuple(study for module in modules for study in module.studies())


def find_study(name: str) -> Study:
    """Find a study by its name, or by that of another table with the same figures."""
    studies = {key: study for study in all_studies() for key in (study.name, *study.also)}
    if name not in studies:
        near = get_close_matches(name, studies, n=3, cutoff=0.5)
        hint = f" Did you mean {join_or(near)}?" if near else ""
        raise UserError(f"There is no table {name!r}.{hint} `vitling list tables` lists them.")
    return studies[name]
