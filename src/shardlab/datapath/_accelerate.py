"""What the three Accelerate paths have in common: one ``Accelerator``, one ``prepare``."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

from shardlab.datapath._torch import TorchLoader, dataloader_options, generator
from shardlab.errors import RunFailed
from shardlab.plan import Plan
from shardlab.store import Store
from shardlab.world import World


def prepare(
    store: Store,
    plan: Plan,
    world: World,
    batch_size: int,
    *,
    loader_type: type[TorchLoader] = TorchLoader,
    **configuration: Any,
) -> TorchLoader:
    """A plain ``DataLoader`` through ``Accelerator.prepare``, as a user writes it."""
    options = dataloader_options(store, plan)
    if not store.iterable:
        options |= {"shuffle": plan.shuffle, "generator": generator(plan)}
    loader = DataLoader(store.indexed, batch_size, drop_last=plan.tail == "drop", **options)
    accelerator = Accelerator(
        cpu=plan.device == "cpu",
        dataloader_config=DataLoaderConfiguration(**configuration),
        device_placement=True,
    )
    if (accelerator.process_index, accelerator.num_processes) != (world.rank, world.world_size):
        raise RunFailed(
            f"Accelerate believes to be rank {accelerator.process_index} of {accelerator.num_processes}, the "
            f"launcher says {world.rank} of {world.world_size}: every rank would read the whole dataset"
        )
    prepared = accelerator.prepare(loader)
    return loader_type(prepared, _epoch_setter(prepared, plan, loader.generator))


def _epoch_setter(prepared: Any, plan: Plan, own: Any) -> Any:
    """An epoch's order has to follow from (seed, epoch), not from how many epochs ran before.

    Accelerate's ``set_epoch`` reaches a sampler that has one; a plain ``RandomSampler`` draws from its
    generator, so that is seeded anew. Ranks other than 0 then receive rank 0's generator state.
    """

    def set_epoch(epoch: int) -> None:
        prepared.set_epoch(epoch)
        for holder in (own, getattr(prepared, "synchronized_generator", None)):
            if holder is not None:
                holder.manual_seed(plan.seed + epoch)

    return set_epoch
