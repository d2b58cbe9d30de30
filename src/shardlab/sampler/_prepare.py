"""A keyed sampler's loader under Accelerate."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, DataLoader

from shardlab.errors import UsageError
from shardlab.index.partition import Partition
from shardlab.sampler._keyed import Keyed

if TYPE_CHECKING:
    from accelerate import Accelerator


def prepare(accelerator: Accelerator, loader: DataLoader[Any]) -> Any:
    """``accelerator.prepare(loader)`` for a loader with a keyed sampler, which has split the data already.

    Accelerate's own ``prepare`` would give each rank a part of its part. This adds what else it does: batches
    on the device, gradient accumulation that ends with the epoch, ``gather_for_metrics``. The prepared loader
    counts epochs and tells the sampler: after ``load_state_dict`` on the sampler, call ``set_epoch`` on it.

    ``gather_for_metrics`` cuts off what pads the last batch, of a resumed epoch too, whatever its place;
    Accelerate alone takes the rest of the whole dataset there, which is right where a multiple of the new global
    batch was consumed. It cannot after a state taken within a batch, as repeats then lie between samples.
    """
    from accelerate.data_loader import prepare_data_loader

    sampler = _sampler_of(loader)
    if accelerator.use_stateful_dataloader:
        _give_a_state(loader.batch_sampler)
    own, theirs = (sampler.rank, sampler.num_replicas), (accelerator.process_index, accelerator.num_processes)
    if own != theirs:
        raise UsageError(
            "the sampler's (rank, num_replicas) must be the Accelerator's",
            own,
            [theirs],
            "make the sampler after the Accelerator and leave both out",
        )
    prepared = prepare_data_loader(
        loader,
        accelerator.device,
        num_processes=1,  # nothing is left to split
        process_index=0,
        put_on_device=accelerator.device_placement,
        rng_types=accelerator.rng_types and list(accelerator.rng_types),
        dispatch_batches=False,
        non_blocking=accelerator.non_blocking,
        use_stateful_dataloader=accelerator.use_stateful_dataloader,
    )
    prepared._drop_last = sampler.drop_last  # whether gather_for_metrics has repeats to cut off
    if not sampler.drop_last:
        sampler.on_begin = partial(_tell_rest, prepared)
    prepared.set_epoch(sampler.epoch)
    prepared._is_accelerate_prepared = True  # Accelerate's mark on loaders that it takes as they are
    return accelerator.prepare(prepared)


def _give_a_state(batches: Any) -> None:
    """Of torch's own batch sampler torchdata saves steps, which lie elsewhere on another number of ranks."""
    from torchdata.stateful_dataloader.sampler import BatchSampler as Stateful  # type: ignore[import-untyped]

    if type(batches) is BatchSampler:
        batches.__class__ = Stateful  # the same but for its iterator, which has the keyed sampler's place


def _tell_rest(prepared: Any, part: Partition) -> None:
    """Samples of the last, incomplete round, by which ``gather_for_metrics`` cuts off the repeats; 0 for none."""
    prepared.remainder = part.rest


def _sampler_of(loader: DataLoader[Any]) -> Keyed:
    """The keyed sampler that a loader iterates, in one of the two ways that Accelerate can handle."""
    batches, sampler = loader.batch_sampler, loader.sampler
    if isinstance(batches, Keyed):
        return batches
    if not (isinstance(batches, BatchSampler) and isinstance(sampler, Keyed) and sampler.unit == 1):
        raise UsageError(
            "prepare takes a DataLoader with sampler=KeyedSampler(...) or batch_sampler=KeyedBatchSampler(...)",
            type(sampler if batches is None else batches).__name__,
            cure="accelerator.prepare(loader) for loaders without",
        )
    if loader.batch_size != sampler.batch_size:
        raise UsageError(
            "the DataLoader's batch_size must be the sampler's", loader.batch_size, [sampler.batch_size]
        )
    batches.num_processes = sampler.num_replicas  # type: ignore[attr-defined]  # total_batch_size needs it
    return sampler
