"""`Anonymize` for pipelines that are not written in Python: Beam YAML, Java, Go.

There, text names a transform, plain values configure it, and its outputs are in a dict. See `docs/beam-yaml.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apache_beam as beam
import yaml
from apache_beam import pvalue

from crenel import transforms
from crenel.policy import Policy
from crenel.policy.checks import suggestion
from crenel.transforms._publish.emitter import PUBLISHED, REJECTED, RELEASES, SUPPRESSED, TRACE

__all__ = ["Anonymize"]

_RESULTS = (PUBLISHED, SUPPRESSED, REJECTED, RELEASES, TRACE)


class Anonymize(beam.PTransform):
    """Publishes rows so that each is indistinguishable from those of at least k persons, before its deadline.

    Rows must have a schema. Published rows have one too: a number is published as a row of `lo` and `hi`, a category as
    text.

    Args:
        policy: Which columns identify a person, which must stay hidden, and how long a row may wait: the path of a
            policy file, its text (of more than one line), or its content.
        outputs: The outputs that are wanted, by name: published, suppressed, rejected, releases, trace; a list, or text
            with commas. The default is published alone. With several, each is the output of that name.
        error_handling: As for other transforms of Beam YAML: `output` names an output for rows that do not fit.
        overlapping_windows: Whether to take rows that lie in several windows; they are published once for each.
        ranges: What a published range is: struct (a row of `lo` and `hi`), columns (`age_lo`, `age_hi`) or text.
        parse_text: Whether to parse text in columns that the policy declares as numbers or moments.
        row_number: The name of a column that numbers the rows; it is never published. The output trace needs it.
        clock: What moves the clock: rows (the latest row and the watermark) or watermark (that alone).
    """

    def __init__(  # type: ignore[no-untyped-def]
        self,
        policy,
        outputs=None,
        error_handling=None,
        overlapping_windows=False,
        ranges="struct",
        parse_text=False,
        row_number=None,
        clock="rows",
    ) -> None:
        # Without annotations: Beam makes a schema of them, and has none for a union.
        super().__init__()
        self._policy: Policy = _policy(policy)
        self._outputs: dict[str, str] = _outputs(outputs, error_handling)
        self._options = {
            "overlapping_windows": bool(overlapping_windows),
            "ranges": ranges,
            "parse_text": bool(parse_text),
            "row_number": row_number,
            "clock": clock,
            "trace": TRACE in self._outputs.values(),
        }

    def expand(self, rows: pvalue.PCollection) -> dict[str, pvalue.PCollection]:
        """Return the outputs that are wanted, by their names."""
        results = rows | transforms.Anonymize(self._policy, **self._options)
        return {name: getattr(results, result) for name, result in self._outputs.items()}


def _policy(given: Any) -> Policy:
    """Return a policy, which may also be YAML text here."""
    is_text = isinstance(given, str) and "\n" in given
    return Policy.of(yaml.safe_load(given) if is_text else given)


def _outputs(wanted: Sequence[str] | str | None, error_handling: Mapping[str, Any] | None) -> dict[str, str]:
    """Map the names of outputs to what they are."""
    if isinstance(wanted, str):
        wanted = [name.strip() for name in wanted.split(",")]
    names = [PUBLISHED] if wanted is None else list(wanted)
    for name in names:
        if name not in _RESULTS:
            guess = suggestion(name, _RESULTS)
            message = f"Anonymize: outputs must be some of {', '.join(_RESULTS)}, not {name!r}. {guess}".rstrip()
            raise ValueError(message)
    outputs = dict(zip(names, names, strict=True))
    if error_handling is not None:
        unknown = set(error_handling) - {"output"}
        if unknown or not isinstance(error_handling.get("output"), str):
            message = "Anonymize: error_handling must have the name of an output, and nothing else: {output: rejected}."
            raise ValueError(message)
        outputs[error_handling["output"]] = REJECTED
    return outputs
