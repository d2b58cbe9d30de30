"""Ranks forked from a parent that holds many small lists; each reads its part of them."""

import argparse
import multiprocessing
import time

parser = argparse.ArgumentParser()
parser.add_argument("--lists", type=int, default=1_000_000)
parser.add_argument("--ranks", type=int, default=4)
parser.add_argument("--seconds", type=float, default=10)
args = parser.parse_args()
data = [[n, n + 1] for n in range(args.lists)]


def read(rank):
    for item in data[rank :: args.ranks]:
        item[0]
    time.sleep(args.seconds)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=read, args=(rank,)) for rank in range(args.ranks)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
