"""Who this process is among the ranks: the one place that reads a launcher's variables."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from shardlab.errors import UsageError

JOIN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
RENDEZVOUS_VARIABLES = (
    *JOIN_VARIABLES,
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
)
RENDEZVOUS_PREFIXES = ("TORCHELASTIC_", "TORCH_NCCL_ASYNC", "PMI_", "PMIX_", "OMPI_")


@dataclass(frozen=True)
class World:
    """One rank's place. ``rank``, ``world_size`` and ``local_rank`` have torch's meaning.

    Two nodes of two ranks each::

        node        0     0     1     1
        rank        0     1     2     3
        local_rank  0     1     0     1
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int = 0
    nnodes: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"RANK must lie in [0, WORLD_SIZE={self.world_size})", self.rank)
        if not 0 <= self.local_rank < self.local_world_size:
            raise UsageError(
                f"LOCAL_RANK must lie in [0, LOCAL_WORLD_SIZE={self.local_world_size})", self.local_rank
            )

    @property
    def is_node_leader(self) -> bool:
        """True on the one rank of each node that builds what the node shares."""
        return self.local_rank == 0

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> World:
        """Read the variables a launcher sets for each rank. Raises UsageError where they are not numbers."""
        env = os.environ if env is None else env
        world_size = _number(env, "WORLD_SIZE")
        local_world_size = max(1, _number(env, "LOCAL_WORLD_SIZE", default=world_size))
        return cls(
            rank=_number(env, "RANK"),
            world_size=world_size,
            local_rank=_number(env, "LOCAL_RANK"),
            local_world_size=local_world_size,
            node=_number(env, "GROUP_RANK", default=_number(env, "RANK") // local_world_size),
            nnodes=_number(env, "GROUP_WORLD_SIZE", default=-(-world_size // local_world_size)),
        )


def is_joining(env: Mapping[str, str] | None = None) -> bool:
    """True where a launcher started this rank; an error where only some of its variables are set."""
    env = os.environ if env is None else env
    present = [name for name in JOIN_VARIABLES if name in env]
    if present and len(present) < len(JOIN_VARIABLES):
        missing = [name for name in JOIN_VARIABLES if name not in env]
        raise UsageError(
            f"{', '.join(JOIN_VARIABLES)} must be set together or not at all",
            f"only {', '.join(present)}",
            cure=f"start with torchrun, which also sets {', '.join(missing)}; or unset {', '.join(present)}",
        )
    return bool(present)


def refuse_to_join(command: str) -> None:
    """Raises UsageError where a launcher started this process: the command starts ranks of its own."""
    if is_joining():
        raise UsageError(
            f"{command} starts its own ranks", "RANK, LOCAL_RANK and WORLD_SIZE of another launcher",
            cure="start it without torchrun or accelerate launch",
        )  # fmt: skip


def without_rendezvous(env: Mapping[str, str]) -> dict[str, str]:
    """The environment less all that would make a child process join this job."""
    return {
        name: value
        for name, value in env.items()
        if name not in RENDEZVOUS_VARIABLES and not name.startswith(RENDEZVOUS_PREFIXES)
    }


def host_name() -> str:
    """The name under which this node appears in the results."""
    return socket.gethostname()


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise UsageError(
            f"{name} must be a whole number", text, cure="start with torchrun, which sets it"
        ) from None
