"""path/to/folder, shards that shardlab.shard wrote: safetensors files and a manifest.json."""

from __future__ import annotations

from shardlab.dataset._arrays import ArrayDataset
from shardlab.dataset._facts import DatasetFacts, Tree
from shardlab.dataset._sample import describe_sample
from shardlab.dataset._spec import DatasetSpec
from shardlab.shards._columns import Columns
from shardlab.shards.manifest import load
from shardlab.shards.reader import ShardedArrays

MARKER = "manifest.json"
MAPPED = True


def open(args: str, spec: DatasetSpec) -> ArrayDataset | Columns:
    """All shards, read into this process's memory."""
    del spec
    dataset = ShardedArrays(args)
    return ArrayDataset(dataset.in_memory()) if dataset.manifest.is_fixed else dataset.columns()


def open_mapped(args: str, spec: DatasetSpec) -> ShardedArrays:
    """The shards, each mapped when its first sample is read."""
    del spec
    return ShardedArrays(args)


def facts(args: str, spec: DatasetSpec) -> DatasetFacts:
    """From the manifest; only the first sample is read."""
    del spec
    manifest = load(args)
    dataset = ShardedArrays(args, verify=False)
    sample: Tree = describe_sample(dataset[0]) if len(dataset) else {"kind": "none"}
    files = dataset.files_for(0, manifest.samples)
    return DatasetFacts(manifest.samples, manifest.data_bytes, sample, files)
