"""torchtitan: the one line that changes there."""

import functools

import torch.distributed as dist

from ._schedule import ReadySchedule


def pipelining_fn(base=None, **options):
    """Returns a `pipelining_fn` for torchtitan's ModelSpec that calls `base` and runs its stages by readiness.

    base: torchtitan's own function; default pipeline_llm.
    options: the options of ReadySchedule, such as policy and slots.

    Ranks of tensor, context and expert parallelism run the same tasks. Data-parallel ranks run independently, except
    with ChunkedLossWrapper, whose forward reduces gradients: they then run the same tasks, too.
    """
    if base is None:
        from torchtitan.distributed.pipeline_parallel import pipeline_llm as base

    @functools.wraps(base)
    def with_readiness(*args, parallel_dims, loss_fn, **kwargs):
        schedule, model_parts, has_first, has_last = base(
            *args, parallel_dims=parallel_dims, loss_fn=loss_fn, **kwargs
        )
        is_chunked = type(loss_fn).__name__ == "ChunkedLossWrapper"
        own = {"domain": _domain(parallel_dims, is_chunked)}
        if is_chunked and has_last:
            own["forwards_in_order"] = True
        ready = ReadySchedule(
            getattr(schedule, "_stages", None) or [schedule._stage],
            schedule._n_microbatches,
            loss_fn=schedule._loss_fn,
            args_chunk_spec=schedule._args_chunk_spec,
            kwargs_chunk_spec=schedule._kwargs_chunk_spec,
            output_merge_spec=schedule._output_merge_spec,
            scale_grads=schedule.scale_grads,
            **{**own, **options},
        )
        return ready, model_parts, has_first, has_last

    return with_readiness


def _domain(dims, with_data_parallel):
    """The global ranks of this stage whose tasks have collectives in common. Ranks are numbered with the pipeline
    outermost, then replicas, and tensor parallelism innermost."""
    rank, stage = dist.get_rank(), dims.world_size // dims.pp
    size = stage if with_data_parallel or dims.ep > 1 else dims.cp * dims.tp
    first = rank // size * size
    return range(first, first + size)
