"""A dataset that reads by a loader of its own: each worker starts a worker."""

import argparse
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--method", default="fork")
parser.add_argument("--until", type=Path, required=True, help="end once this file is there")
args = parser.parse_args()


class Numbers(IterableDataset):
    def __iter__(self):
        while True:
            time.sleep(0.01)
            yield torch.zeros(1)


class Batches(IterableDataset):
    def __iter__(self):
        torch.multiprocessing.current_process()._config["daemon"] = False  # what people do to be allowed to
        return iter(DataLoader(Numbers(), 2, num_workers=1, multiprocessing_context=args.method))


if __name__ == "__main__":
    for _ in DataLoader(Batches(), 2, num_workers=args.workers, multiprocessing_context=args.method):
        if args.until.exists():
            break
