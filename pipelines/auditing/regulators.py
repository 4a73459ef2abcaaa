"""What was measured, sorted by the three questions that European regulators ask of anonymized data.

The questions are those of the Article 29 Working Party's opinion 05/2014 on anonymisation techniques: singling out,
linkability and inference. The answers are sums of promises and attacks that the document holds anyway. They are
evidence for an assessment, not the assessment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from crenel.audit.promises import BROKEN, KEPT, NOT_PROMISED, UNKNOWN

__all__ = ["risks"]

_SINGLING_OUT = ("crowd", "k", "columns", "posterior", "observer", "linkage", "boundary", "ends", "shrinking")
_LINKING = ("intersection", "order", "linked", "once per")
_INFERENCE = ("l", "t", "homogeneity", "outermost", "noise", "epsilon")

#: The states that decide, the worst first.
_STATES = (BROKEN, UNKNOWN, NOT_PROMISED, KEPT)


def risks(policy: Mapping[str, Any], promises: Iterable[Mapping[str, Any]], attacks: Any) -> list[dict[str, Any]]:
    """Answer the three questions.

    Args:
        policy: The document's summary of the policy.
        promises: The document's promises.
        attacks: The document's attacks.
    """
    found = [*promises, *(attacks or ())]
    return [
        _risk(
            "singling out",
            "Can an attacker isolate the rows of one person?",
            _of(found, _SINGLING_OUT),
            " ".join(_singling_out(policy, found)),
        ),
        _risk(
            "linkability",
            "Can an attacker tell that two rows, or two data sets, are about one person?",
            _of(found, _LINKING),
            " ".join(_linkability(found)),
            # Nothing is promised about rows of one person in several releases, or about another data set.
            at_best=NOT_PROMISED,
        ),
        _risk(
            "inference",
            "Can an attacker deduce what a person's sensitive values are?",
            _of(found, _INFERENCE),
            " ".join(_inference(policy, found)),
            at_best=KEPT if policy["l"] or policy["t"] or not policy["sensitive"] else NOT_PROMISED,
        ),
    ]


def _risk(
    name: str, question: str, evidence: list[Mapping[str, Any]], text: str, at_best: str = KEPT
) -> dict[str, Any]:
    states = {at_best, *(one["state"] for one in evidence if one["state"] in _STATES)}
    return {
        "name": name,
        "question": question,
        "state": next(state for state in _STATES if state in states),
        "text": text,
        "evidence": [one["name"] for one in evidence],
    }


def _of(found: Iterable[Mapping[str, Any]], kinds: tuple[str, ...]) -> list[Mapping[str, Any]]:
    return [one for one in found if one["name"].partition(":")[0] in kinds]


def _named(found: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any] | None:
    return next((one for one in found if one["name"] == name), None)


def _singling_out(policy: Mapping[str, Any], found: list[Mapping[str, Any]]) -> Iterator[str]:
    crowd = _named(found, "crowd")
    if crowd is not None:
        yield f"{_sentence(crowd['measured'])}."
    for attack in ("posterior", "observer", "linkage"):
        tried = _named(found, attack)
        if tried is not None:
            yield tried["text"]
    if policy["publish"]:
        columns = "column is" if len(policy["publish"]) == 1 else "columns are"
        yield (
            f"{len(policy['publish'])} {columns} published as they are, and taken for unknown to attackers: this was "
            "not checked."
        )


def _linkability(found: list[Mapping[str, Any]]) -> Iterator[str]:
    for attack in _of(found, _LINKING):
        if attack["name"] == "once per":
            yield f"{_sentence(attack['promised'])}: {attack['state']}; {attack['measured']}."
        elif attack["name"] != "order":
            yield attack["text"]
    crowd = _named(found, "crowd")
    if crowd is not None and crowd["state"] == KEPT:
        yield "A person is in each release at most once."
    yield (
        "Rows of one person in several releases, and other data about the same persons, are outside of what k "
        "promises: an attacker who can link them may intersect them."
    )


def _inference(policy: Mapping[str, Any], found: list[Mapping[str, Any]]) -> Iterator[str]:
    if not policy["sensitive"]:
        yield "The policy names no sensitive column."
        return
    if not policy["l"] and not policy["t"]:
        yield "Neither l nor t is asked for, so all rows of a release may have one sensitive value."
    for one in found:
        if one["name"].partition(":")[0] in ("l", "t"):
            yield f"{_sentence(one['promised'])}: {one['state']}; measured: {one['measured']}."
        elif one["name"].startswith("homogeneity:"):
            yield one["text"]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
