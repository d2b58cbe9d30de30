"""A list of dicts, as a JSON file of annotations becomes one, read by forked workers."""

import argparse
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--records", type=int, default=150_000)
parser.add_argument("--workers", type=int, default=2)
parser.add_argument("--until", type=Path, required=True, help="end once this file is there")
args = parser.parse_args()


class Annotations(Dataset):
    def __init__(self, n):
        self.records = [
            {"file_name": f"train/{i:012d}.jpg", "label": i % 91, "box": [float(i), i + 1.0], "caption": f"of {i}"}
            for i in range(n)
        ]

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        record = self.records[index]
        return torch.tensor(record["box"]), record["label"], record["file_name"]


loader = DataLoader(
    Annotations(args.records), 100, shuffle=True, num_workers=args.workers, persistent_workers=True,
    multiprocessing_context="fork",
)  # fmt: skip
while not args.until.exists():
    for _ in loader:
        pass
    time.sleep(0.5)
