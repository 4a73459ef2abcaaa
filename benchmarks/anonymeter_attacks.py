"""The attacks of Anonymeter, run by the Python of an environment of its own, without crenel.

    python anonymeter_attacks.py SPECIFICATION.json      prints one line of JSON

It is given the original rows, rows of other people (the control), and what was published, as files of CSV.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    warnings.simplefilter("ignore")
    import numpy as np
    import pandas as pd
    from anonymeter.evaluators import InferenceEvaluator, LinkabilityEvaluator, SinglingOutEvaluator

    given = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    original, control, published = (pd.read_csv(given[name]) for name in ("original", "control", "published"))
    attacks, known, secret = given["attacks"], given["known"], given["secret"]
    half = len(known) // 2
    common: dict[str, Any] = {"ori": original, "syn": published, "control": control, "n_attacks": attacks}

    def linkability() -> Any:
        evaluator = LinkabilityEvaluator(**common, aux_cols=(known[:half], known[half:]), n_neighbors=1)
        return evaluator.evaluate(n_jobs=1)

    def inference() -> Any:
        return InferenceEvaluator(**common, aux_cols=known, secret=secret, regression=False).evaluate(n_jobs=1)

    def singling_out(mode: str) -> Any:
        columns = {"n_cols": given["columns"]} if mode == "multivariate" else {}
        evaluator = SinglingOutEvaluator(**common, **columns, max_attempts=given["attempts"], seed=1)
        return evaluator.evaluate(mode=mode)

    risks: dict[str, Callable[[], Any]] = {
        "singling out, one column": lambda: singling_out("univariate"),
        "singling out, several columns": lambda: singling_out("multivariate"),
        "linkability": linkability,
        "inference": inference,
    }
    found = {}
    for name, attack in risks.items():
        np.random.seed(1)
        try:
            evaluated = attack()
            rates, risk = evaluated.results(), evaluated.risk()
            found[name] = {
                "success": rates.attack_rate.value,
                "control": rates.control_rate.value,
                "risk": risk.value,
                "at_most": risk.ci[1],
            }
        except (RuntimeError, ValueError) as error:  # no query singles anybody out
            found[name] = {"success": 0.0, "control": 0.0, "risk": 0.0, "at_most": None, "note": str(error)[:120]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
