"""A dataset on disk: safetensors shards and a ``manifest.json`` with counts, shapes and checksums."""
