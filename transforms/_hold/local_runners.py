"""Peculiarities of local runners: stale state, timers that get mixed up, split bundles, one key at a time."""

from __future__ import annotations

import warnings
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import DebugOptions, DirectOptions, WorkerOptions
from apache_beam.pipeline import PipelineVisitor
from apache_beam.pvalue import PCollection
from apache_beam.transforms.userstate import is_stateful_dofn
from apache_beam.transforms.util import ReshufflePerKey

_PRISM = "apache_beam.runners.portability.prism_runner"
_BEAMS_OWN = (
    "apache_beam.runners.direct",
    "apache_beam.runners.portability.fn_api_runner",
)
_LOCAL = (*_BEAMS_OWN, "crenel.runners.streaming")


def warn_of_stale_state(pipeline: Any) -> None:
    """Warn users who run a stateful step on the local runner with several workers and a cache of state.

    All workers share one cache token there (Beam 2.77). So a key that moves to another worker and back is answered from
    a stale cache, and rows are lost or published twice. Only processes without a cache are safe.
    """
    options = pipeline.options
    direct = options.view_as(DirectOptions)
    if not is_local(pipeline) or direct.direct_num_workers == 1:
        return
    if direct.direct_running_mode == "multi_processing" and not _has_cache(options):
        return
    warnings.warn(
        "Anonymize: with direct_num_workers other than 1, Beam's local runner answers from stale state, and rows are "
        "lost or published twice. Use one worker, or direct_running_mode=multi_processing without "
        "max_cache_memory_usage_mb, or AnonymizeBounded, which needs no state.",
        stacklevel=2,
    )


def keep_keys_whole(pipeline: Any) -> None:
    """Ask Prism not to split bundles of a stateful step.

    Prism splits a bundle that is slow, and then takes its key for free although the first part still works on it (Beam
    2.77): two bundles of one key run at once, and the state that one of them writes is lost. Beam's `DirectRunner` may
    choose Prism, too.
    """
    if type(pipeline.runner).__module__.startswith((_PRISM, *_LOCAL)):
        pipeline.options.view_as(DebugOptions).add_experiment("prism_disable_sdf_split")


def held_apart(packs: PCollection) -> PCollection:
    """Keep HOLD out of the stage of another step with state and timers, on Beam's local runner.

    That runner puts steps with state into one stage, and gathers the timers of a stage by the name of the timer alone
    (Beam 2.77): of two steps whose timers have one name, one loses its timers, and with them the rows it holds. And if
    one step feeds the other, the second is told that all is over before the timers of the first have fired. A grouping
    between them makes two stages. It handles packs, not rows, and keeps their order.
    """
    if not type(packs.pipeline.runner).__module__.startswith(_BEAMS_OWN) or not _has_state(packs.pipeline):
        return packs
    apart = packs | "Apart" >> ReshufflePerKey()
    apart.element_type = packs.element_type
    return apart


def _has_state(pipeline: Any) -> bool:
    """Tell whether a step that the pipeline has so far keeps state or sets timers."""
    found = []

    class Visitor(PipelineVisitor):
        def visit_transform(self, transform_node: Any) -> None:
            step = transform_node.transform
            if isinstance(step, beam.ParDo) and is_stateful_dofn(step.fn):
                found.append(transform_node)

    pipeline.visit(Visitor())
    return bool(found)


def _has_cache(options: Any) -> bool:
    if options.view_as(WorkerOptions).max_cache_memory_usage_mb:
        return True
    size = options.view_as(DebugOptions).lookup_experiment("state_cache_size")
    return bool(size) and size != "0"


def is_local(pipeline: Any) -> bool:
    """Tell whether a local runner runs the pipeline, as far as it is known when the pipeline is built."""
    return type(pipeline.runner).__module__.startswith(_LOCAL)


def is_run_here(rows: Any) -> bool:
    """Tell whether rows are of a pipeline that a local runner runs: it works on one key of a stateful step at a time.

    A pipeline that is only expanded, for one in another language, has Beam's default runner too. But its input comes
    from steps that are not its own: there is no root above them.
    """
    step = rows.producer
    while step is not None and step.parent is not None:
        step = step.parent
    return is_local(rows.pipeline) and step is not None and step.full_label == ""
