"""The dataset that a command line names, checked without loading torch."""

from __future__ import annotations

from shardlab import dataset
from shardlab.config import RunConfig
from shardlab.dataset import DatasetSpec
from shardlab.errors import UsageError
from shardlab.plan import path_plugin


def spec_of(config: RunConfig) -> DatasetSpec:
    """The dataset that a config names. Raises UsageError for what is none, or does not fit the data path."""
    spec = DatasetSpec(config.dataset, config.data_dir, config.seed)
    kind = dataset.kind_of(spec)
    path = path_plugin(config.sampler)
    wanted = path.fact("DATASET_KINDS") if path else None
    if wanted and kind not in wanted:
        raise UsageError(
            f"--sampler {config.sampler} reads a folder of shards",
            config.dataset,
            cure=f"write one first: python -m shardlab.shard {config.dataset} OUT, then --dataset OUT",
        )
    return spec
