"""A saved run goes on as if it had never stopped; what is damaged, foreign or hostile changes nothing."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adagrad, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import (
    LambdaLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from full_disk import file_size_limit
from ranks import each_rank, new_job
from shardlab.engine._flatten import packed, unpacked
from shardlab.engine.checkpoint import Place, latest, load, read_place, save
from shardlab.errors import RunFailed, UsageError

FILES = ["model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"]


class Precise(Optimizer):
    """Sums gradients in float64, whatever the parameter is, and counts in a plain number."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01, "range": (0.5, 2), "name": "precise"})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                total = state.get("total", torch.zeros_like(parameter, dtype=torch.float64))
                state["total"] = total + parameter.grad.double() / 3
                state["times"] = state.get("times", 0) + 1
                parameter -= (group["lr"] * state["total"] / state["times"]).to(parameter.dtype)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": lambda params: AdamW(params, lr=0.01, betas=(0.8, 0.95)),
    "adamw-amsgrad": lambda params: AdamW(params, amsgrad=True, foreach=False),
    "sgd-momentum": lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "sgd": lambda params: SGD(params, lr=0.1),
    "rmsprop": lambda params: RMSprop(params, centered=True),
    "adagrad": lambda params: Adagrad(params),
    "precise": Precise,
}
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "none": lambda optimizer: None,
    "step": lambda optimizer: StepLR(optimizer, 2, gamma=0.3),
    "multi-step": lambda optimizer: MultiStepLR(optimizer, [2, 2, 5]),
    "one-cycle": lambda optimizer: OneCycleLR(optimizer, 0.1, 50),
    "sequential": lambda optimizer: SequentialLR(
        optimizer, [StepLR(optimizer, 1), LambdaLR(optimizer, lambda step: 1 / (1 + step))], [3]
    ),
    "plateau": lambda optimizer: ReduceLROnPlateau(optimizer, patience=0),
}


class Net(nn.Module):
    """A shared weight, a batch norm's buffers, dropout, and one parameter that never gets a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6), nn.Dropout(0.4)
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.unused = nn.Parameter(torch.rand(3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.drop(self.norm(self.first(x)).relu()))


Parts = tuple[nn.Module, Optimizer, Any]


def seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)  # noqa: NPY002 - what users draw from
    random.seed(number)


def parts(number: int = 0, optimizer: str = "adamw", schedule: str = "step") -> Parts:
    """A fresh model, optimiser and schedule; the generators are seeded with the number."""
    seed(number)
    model = Net()
    made = OPTIMIZERS[optimizer](model.parameters())
    return model, made, SCHEDULES[schedule](made)


def train(run: Parts, steps: int) -> None:
    """Steps on data that all three generators make."""
    model, optimizer, schedule = run
    for _ in range(steps):
        shift = float(np.random.standard_normal())  # noqa: NPY002
        x = torch.randn(5, 6) * random.gauss(1, 0.1) + shift
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if isinstance(schedule, ReduceLROnPlateau):
            schedule.step(loss.item())
        elif schedule is not None:
            schedule.step()


def everything(run: Parts) -> list[Any]:
    """All that a run is, as values that are equal where all bits are."""
    model, optimizer, schedule = run
    state = optimizer.state_dict()
    found: list[Any] = [{name: bits(tensor) for name, tensor in model.state_dict().items()}]
    for number, of_parameter in sorted(state["state"].items()):
        found.append((number, {key: bits(value) for key, value in of_parameter.items()}))
    found.append(repr(state["param_groups"]))
    found.append(None if schedule is None else repr(schedule.state_dict()))
    return [*found, *generators()]


def bits(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return type(value), repr(value)
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return value.dtype, tuple(value.shape), raw


def generators() -> list[Any]:
    of_numpy = repr(np.random.get_state(legacy=False))  # noqa: NPY002
    return [torch.get_rng_state().tolist(), of_numpy, random.getstate()]


def place(global_step: int = 7, **more: Any) -> Place:
    values: dict[str, Any] = {
        "run_id": "run", "epoch": 1, "step": 3, "world_size": 1, "batch_size": 5, "sampler": "keyed",
        "seed": 2**63 + 1, "loader": {"position": 15},
    }  # fmt: skip
    return Place(**{**values, "global_step": global_step, **more})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    run = parts(1)
    train(run, 3)
    return save(tmp_path / "saved", place(), *run)


# It goes on as if it had never stopped


@pytest.mark.parametrize("schedule", ["none", "step"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_resumed_run_is_the_run_bit_for_bit(tmp_path: Path, optimizer: str, schedule: str) -> None:
    check_resume(tmp_path, optimizer, schedule)


@pytest.mark.parametrize("schedule", sorted(set(SCHEDULES) - {"none", "step"}))
def test_a_schedule_of_plain_values_goes_on(tmp_path: Path, schedule: str) -> None:
    check_resume(tmp_path, "sgd-momentum", schedule)


def check_resume(folder: Path, optimizer: str, schedule: str) -> None:
    for before, after in ((0, 3), (1, 1), (4, 3)):
        straight = parts(5, optimizer, schedule)
        train(straight, before + after)
        wanted = everything(straight)
        stopped = parts(5, optimizer, schedule)
        train(stopped, before)
        path = save(folder, place(before), *stopped)
        unchanged = everything(stopped)
        resumed = parts(6, optimizer, schedule)
        train(resumed, 2)  # whatever a fresh one has by now must go
        assert load(path, *resumed) == place(before)
        assert everything(resumed) == unchanged
        train(resumed, after)
        assert everything(resumed) == wanted


def test_saving_changes_nothing(tmp_path: Path) -> None:
    run = parts(3)
    train(run, 2)
    random.gauss(0, 1)  # a second number of the pair waits
    before = everything(run)
    save(tmp_path, place(), *run)
    assert everything(run) == before


def test_what_was_loaded_lives_on_its_own(saved: Path) -> None:
    run, again = parts(2), parts(2)
    load(saved, *run)
    train(run, 2)
    load(saved, *again)
    load(saved, *run)
    assert everything(run) == everything(again)


def test_shared_parameters_are_saved_once_and_stay_shared(saved: Path) -> None:
    model, optimizer, schedule = parts(2)
    load(saved, model, optimizer, schedule)
    assert model.get_parameter("first.weight") is model.get_parameter("last.weight")
    kept = (saved / "model.safetensors").read_bytes()
    assert (b'"first.weight"' in kept) + (b'"last.weight"' in kept) == 1


def test_layouts_and_odd_tensors_come_back(tmp_path: Path) -> None:
    def make(fill: float) -> tuple[nn.Module, Optimizer]:
        model = nn.Module()
        model.conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        model.short = nn.Parameter(torch.full((4, 3), fill, dtype=torch.bfloat16).T)
        for name, tensor in {
            "empty": torch.zeros(0, 3), "none_too": torch.zeros(0), "scalar": torch.tensor(fill),
            "spread": torch.tensor([fill]).expand(5), "flags": torch.tensor([fill > 0, False]),
            "turn": torch.tensor([1 + fill * 1j], dtype=torch.complex64),
            "far": torch.tensor([-0.0, math.nan, math.inf]),
        }.items():  # fmt: skip
            model.register_buffer(name, tensor.clone() if name == "spread" and fill < 0 else tensor)
        model.register_buffer("part", model.scalar.view(1))
        return model, SGD(model.parameters(), lr=0.1, momentum=0.5)

    model, optimizer = make(2.5)
    sum(parameter.float().square().sum() for parameter in model.parameters()).backward()  # type: ignore[union-attr]
    optimizer.step()
    path = save(tmp_path, place(), model, optimizer, None)
    other, of_other = make(-1.0)
    load(path, other, of_other, None)
    for name, tensor in model.state_dict().items():
        assert bits(other.state_dict()[name]) == bits(tensor), name
    assert other.conv.weight.is_contiguous(memory_format=torch.channels_last)
    momentum = of_other.state[other.conv.weight]["momentum_buffer"]
    assert bits(momentum) == bits(optimizer.state[model.conv.weight]["momentum_buffer"])
    assert momentum.is_contiguous(memory_format=torch.channels_last)


def test_options_keep_their_types(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = AdamW(
        [{"params": [model.weight], "lr": 1}, {"params": [model.bias], "note": "b"}], betas=(0.5, 0.75)
    )
    path = save(tmp_path, place(), model, optimizer, None)
    fresh = AdamW([{"params": [model.weight]}, {"params": [model.bias]}])
    load(path, model, fresh, None)
    for now, then in zip(fresh.param_groups, optimizer.param_groups, strict=True):
        assert {key: repr(value) for key, value in now.items()} == {key: repr(then[key]) for key in then}
    assert type(fresh.param_groups[0]["betas"]) is tuple
    assert type(fresh.param_groups[0]["lr"]) is int


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(-5, 5) | st.tuples(st.booleans()), inner)
        | st.dictionaries(st.integers(-5, 5), st.integers(1, 9)).map(Counter)
    ),
)


@given(PLAIN)
def test_plain_values_survive_json_with_their_types(value: Any) -> None:
    text = msgspec.json.encode(packed(value, "it"))
    assert repr(unpacked(msgspec.json.decode(text))) == repr(value)


# Which checkpoints there are


def test_a_checkpoint_is_named_by_its_step_and_holds_no_pickle(saved: Path) -> None:
    assert saved.name == "step-00000007"
    assert names(saved) == FILES
    assert read_place(saved) == place()
    for name in FILES:
        start = (saved / name).read_bytes()[:10]
        assert start[:1] == b"{" if name == "state.json" else start[8:9] == b"{"


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    run = parts()
    for step in range(5):
        save(tmp_path, place(step), *run)
        assert latest(tmp_path).name == f"step-{step:08d}"
    assert names(tmp_path) == ["step-00000003", "step-00000004"]
    save(tmp_path, place(123456789), *run, keep=1)
    assert names(tmp_path) == ["step-123456789"]


def test_a_run_that_went_back_never_removes_what_it_saves(tmp_path: Path) -> None:
    run = parts()
    for step in (10, 20, 12, 14, 16):
        save(tmp_path, place(step), *run)
    assert names(tmp_path) == ["step-00000014", "step-00000016", "step-00000020"]


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    run = parts()
    for position in (1, 2):
        path = save(tmp_path, place(loader={"position": position}), *run)
    assert read_place(path).loader == {"position": 2}
    assert names(tmp_path) == [path.name]


@pytest.mark.parametrize("what", ["missing", "empty", "unfinished", "a file"])
def test_no_checkpoint_is_an_error_with_a_cure(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "folder"
    if what == "a file":
        folder.touch()
    elif what != "missing":
        folder.mkdir()
    if what == "unfinished":
        (folder / ".partial-step-00000001").mkdir()
        (folder / "step-00000002").mkdir()  # someone's own: nothing was ever finished in it
    with pytest.raises(UsageError, match="Cure: name the folder"):
        latest(folder)


# Killed while saving


def filled(step: int) -> Parts:
    """A run in which every number of the model and of the optimiser is the step."""
    model = nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        nn.init.constant_(parameter, step)
        optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, step)
    return model, optimizer, None


def whole(folder: Path) -> Place:
    """The place of the latest checkpoint, which must be one of :func:`filled`."""
    model, optimizer, _ = filled(-1)
    path = latest(folder)
    read = load(path, model, optimizer, None)
    assert path.name.removeprefix(".replaced-") == f"step-{read.global_step:08d}"
    for parameter in model.parameters():
        assert parameter.unique().tolist() == [read.global_step]
        assert optimizer.state[parameter]["momentum_buffer"].unique().tolist() == [read.global_step]
    return read


def save_filled(folder: Path, step: int, position: int) -> None:
    save(folder, place(step, loader={"position": position}), *filled(step))


def forked(work: Callable[[], Any]) -> int:
    """The process id of a fork that does ``work`` and ends."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def save_and_die(folder: Path, step: int, at: int) -> None:
    """Save, and be killed before the ``at``-th thing that is done to the folder."""
    seen = itertools.count()

    def hook(event: str, of: Any) -> None:
        ours = event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir")
        if ours and (str(of[0]).startswith(str(folder)) or str(of[0]) in FILES) and next(seen) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    save_filled(folder, step, 1)


def die_everywhere(world: Any, inherited: Any, under: Path, step: int) -> int:
    """At how many moments a save of ``step`` after steps 1 and 2 was killed."""
    for at in itertools.count():
        folder = under / str(at)
        save_filled(folder, 1, 0)
        save_filled(folder, 2, 0)
        code = ended(forked(partial(save_and_die, folder, step, at)))
        left = whole(folder)
        assert (left.global_step, left.loader["position"]) in [(2, 0), (step, 1)]
        if code == 0:
            assert left.loader["position"] == 1
            return at
        assert code == -signal.SIGKILL
        save_filled(folder, 4, 0)
        assert whole(folder).global_step == 4
        assert names(folder) == [f"step-{left.global_step:08d}", "step-00000004"]
    raise AssertionError


@pytest.mark.parametrize("step", [2, 3], ids=["again", "next"])
def test_a_kill_between_any_two_operations_leaves_a_whole_checkpoint(tmp_path: Path, step: int) -> None:
    moments = on_ranks(tmp_path, 1, die_everywhere, tmp_path / "under", step)
    assert moments[0] > 12


def save_for_ever(folder: Path, first: int, out: int) -> None:
    for step in itertools.count(first):
        for position in (0, 1):
            save_filled(folder, step, position)
            os.write(out, b"%d %d\n" % (step, position))


def die_at_random(world: Any, inherited: Any, folder: Path) -> None:
    drawn, reached = random.Random(1), (0, -1)
    filled(0)
    for _ in range(25):
        out, into = os.pipe()
        pid = forked(partial(save_for_ever, folder, reached[0] + 1, into))
        os.close(into)
        said = os.read(out, 1 << 16)
        sleep(drawn.uniform(0, 0.06))
        os.kill(pid, signal.SIGKILL)
        assert ended(pid) == -signal.SIGKILL
        while more := os.read(out, 1 << 16):
            said += more
        os.close(out)
        left = whole(folder)
        step, position = map(int, said.split(b"\n")[-2].split())
        assert (left.global_step, left.loader["position"]) >= (step, position) > reached
        reached = (left.global_step, left.loader["position"])
    save_filled(folder, reached[0] + 1, 0)
    assert names(folder) == [f"step-{reached[0] + more:08d}" for more in (0, 1)]


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    on_ranks(tmp_path, 1, die_at_random, tmp_path / "saved")


@pytest.mark.parametrize("limit", [0, 300, 2000, 12000])
def test_a_full_disk_keeps_what_was_there(tmp_path: Path, limit: int) -> None:
    save_filled(tmp_path, 1, 0)
    for step in (1, 2):
        with file_size_limit(limit), pytest.raises(RunFailed, match=r"could not be written.*Cure: make room"):
            save_filled(tmp_path, step, 1)
        assert whole(tmp_path) == place(1, loader={"position": 0})
        assert names(tmp_path) == ["step-00000001"]


# Damaged, foreign, hostile: nothing is changed


def check_refused(path: Path, kind: type[Exception], *said: str, run: Parts | None = None) -> None:
    run = parts(8) if run is None else run
    before = everything(run)
    with pytest.raises(kind) as refused:
        load(path, *run)
    assert everything(run) == before
    assert all(word in str(refused.value) for word in said), str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["cut", "empty", "longer", "gone", "foreign", "link", "folder", "pipe"])
def test_a_damaged_file_is_named(tmp_path: Path, saved: Path, name: str, how: str) -> None:
    file, content = saved / name, (saved / name).read_bytes()
    run = parts(9)
    other = save(tmp_path / "other", place(), *run)
    file.unlink()
    if how in ("cut", "empty", "longer"):
        file.write_bytes({"cut": content[:-5], "empty": b"", "longer": content + b"x"}[how])
    elif how == "foreign":
        file.write_bytes((other / name).read_bytes())
    elif how == "link":
        (tmp_path / "outside").write_bytes(content)
        file.symlink_to(tmp_path / "outside")
    elif how == "folder":
        file.mkdir()
    elif how == "pipe":
        os.mkfifo(file)
    named = (
        "model.safetensors" if (name, how) == ("state.json", "foreign") else name
    )  # the others' are not its own
    check_refused(saved, RunFailed, str(saved / named), f"Cure: remove {saved}", "earlier checkpoint")


@pytest.mark.parametrize("name", FILES[:3])
def test_a_flipped_bit_is_found(saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    for at in {0, 9, len(content) // 2, len(content) - 1}:
        content[at] ^= 4
        (saved / name).write_bytes(content)
        content[at] ^= 4
        check_refused(saved, RunFailed, str(saved / name))


def test_a_flipped_bit_anywhere_in_the_state_is_found(saved: Path) -> None:
    file = saved / "state.json"
    content = bytearray(file.read_bytes())
    for at in range(len(content) - 1):  # the newline at the end says nothing
        content[at] ^= 1 << at % 8
        file.write_bytes(content)
        content[at] ^= 1 << at % 8
        with pytest.raises(RunFailed, match=r"state\.json"):
            read_place(saved)


def reseal(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a checkpoint's state, and give it the right checksum."""
    file = path / "state.json"
    state = msgspec.json.decode(file.read_bytes())["state"]
    change(state)
    text = msgspec.json.encode(state)
    seal = hashlib.blake2b(text, digest_size=16).hexdigest()
    file.write_bytes(msgspec.json.encode({"blake2b": seal, "state": msgspec.Raw(text)}))


HOSTILE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a file outside": lambda state: state.update(files={"../x": state["marks"][0]}),
    "a mark with a name": lambda state: state["marks"][0].update(file="../x"),
    "a tied name outside": lambda state: state["tied"].update({"norm.bias": "../x"}),
    "fewer marks": lambda state: state["marks"].pop(),
    "another version": lambda state: state.update(version=2),
    "no version": lambda state: state.pop("version"),
    "a place of text": lambda state: state["place"].update(epoch="1"),
    "a loader of text": lambda state: state["place"].update(loader={"position": "../x"}),
    "a part too few": lambda state: state.pop("tied"),
    "a state of nobody": lambda state: state["optimizer"]["values"].update({"99.step": 1}),
    "a state without a number": lambda state: state["optimizer"]["values"].update({"../x.step": 1}),
    "an unknown kind of value": lambda state: state["optimizer"]["groups"][0].update(lr={"call": ["exit"]}),
    "a key that is none": lambda state: state.update(schedule={"dict": [[[1], 2]]}),
    "a group too many": lambda state: state["optimizer"]["groups"].append({}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_state_that_nobody_wrote_is_refused(saved: Path, what: str) -> None:
    reseal(saved, lambda state: None)
    load(saved, *parts())
    reseal(saved, HOSTILE[what])
    check_refused(saved, RunFailed, str(saved / "state.json"))


def test_text_of_any_depth_is_refused(saved: Path) -> None:
    (saved / "state.json").write_bytes(b'{"blake2b":"","state":' + b"[" * 100_000)
    check_refused(saved, RunFailed, "state.json")


def test_a_path_that_is_no_checkpoint_is_wrong_usage(tmp_path: Path) -> None:
    check_refused(tmp_path / "none", UsageError, "step-N")


# Of another run


def wider() -> Parts:
    model, _, _ = parts(8)
    model.last = nn.Linear(6, 7)
    optimizer = AdamW(model.parameters())
    return model, optimizer, StepLR(optimizer, 2)


def changed(change: Callable[[nn.Module], Any], optimizer: str = "adamw", schedule: str = "step") -> Parts:
    model, _, _ = parts(8)
    change(model)
    made = OPTIMIZERS[optimizer](model.parameters())
    return model, made, SCHEDULES[schedule](made)


OTHERS: dict[str, tuple[Callable[[], Parts], str]] = {
    "a shape": (wider, "last.weight: float32[7, 6] here, float32[6, 6] in the checkpoint"),
    "a dtype": (lambda: changed(lambda model: model.norm.double()), "norm.weight: float64[6] here, float32[6]"),
    "one more": (
        lambda: changed(lambda model: model.register_buffer("more", torch.zeros(2))),
        "more: float32[2] here, nothing in the checkpoint",
    ),
    "one less": (
        lambda: changed(lambda model: model.norm.register_buffer("running_var", None)),
        "norm.running_var: nothing here, float32[6] in the checkpoint",
    ),
    "not shared": (
        lambda: changed(lambda model: setattr(model.last, "weight", nn.Parameter(torch.zeros(6, 6)))),
        "last.weight: nothing here, first.weight in the checkpoint",
    ),
    "an optimiser": (lambda: changed(lambda model: None, "sgd"), "dampening, which was not saved"),
    "no schedule": (lambda: changed(lambda model: None, schedule="none"), "schedule must be of the kind"),
    "a schedule": (lambda: changed(lambda model: None, schedule="one-cycle"), "schedule must be of the kind"),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHERS)
def test_a_checkpoint_of_another_run_is_refused_with_the_first_difference(saved: Path, what: str) -> None:
    make, said = OTHERS[what]
    check_refused(saved, UsageError, said, "Cure: build it as it was", run=make())


def test_parameters_in_another_order_are_refused(saved: Path) -> None:
    model, _, _ = parts(8)
    optimizer = AdamW(list(model.parameters())[::-1])
    run = model, optimizer, StepLR(optimizer, 2)
    check_refused(saved, UsageError, "parameter 0 of group 0: [6] here, [3] in the checkpoint", run=run)


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"any": object()}

    def set_extra_state(self, state: Any) -> None:
        raise AssertionError


class Calling(StepLR):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "then": print}


def refused_on_save(folder: Path, run: Parts, of: Place) -> str:
    with pytest.raises(UsageError) as refused:
        save(folder, of, *run)
    assert not folder.exists()
    return str(refused.value)


def test_what_would_need_a_pickle_is_refused_by_name(tmp_path: Path) -> None:
    folder, (model, optimizer, _) = tmp_path / "new", parts()
    extra = Extra(2, 2)
    assert "_extra_state of the model" in refused_on_save(folder, (extra, optimizer, None), place())
    assert "state.then must be" in refused_on_save(folder, (model, optimizer, Calling(optimizer, 2)), place())
    of_tensor = AdamW(model.parameters(), lr=torch.tensor(0.1), foreach=False)
    assert "lr of the optimiser" in refused_on_save(folder, (model, of_tensor, None), place())
    odd = SGD(model.parameters(), lr=0.1)
    odd.state[model.get_parameter("unused")]["seen"] = {1, 2}
    assert "seen of the optimiser" in refused_on_save(folder, (model, odd, None), place())
    sparse = nn.Module()
    sparse.register_buffer("few", torch.eye(3).to_sparse())
    assert "few of the model" in refused_on_save(folder, (sparse, optimizer, None), place())


def test_a_place_must_be_one(tmp_path: Path) -> None:
    folder, run = tmp_path / "new", parts()
    assert "world_size" in refused_on_save(folder, run, place(world_size=2))
    assert "global_step" in refused_on_save(folder, run, place(-1))
    assert "text and integers" in refused_on_save(folder, run, place(epoch="1"))
    assert "text and integers" in refused_on_save(folder, run, place(loader={"at": np.int64(1)}))
    assert "text and integers" in refused_on_save(folder, run, place(run_id="\ud800"))
    with pytest.raises(UsageError, match="keep"):
        save(folder, place(), *run, keep=0)


# Ranks


def on_ranks(folder: Path, nproc: int, target: Callable[..., Any], *args: Any) -> list[Any]:
    job = new_job(
        folder / f"run-{monotonic()}", sampler="distributed", dataset="synthetic:n=8:5x3", nproc=nproc
    )
    return each_rank(target, job, *args)


def next_draws() -> list[float]:
    of_numpy = float(np.random.random())  # noqa: NPY002
    return [torch.rand(1).item(), of_numpy, random.random(), random.gauss(0, 1)]


def save_on_ranks(world: Any, inherited: Any, folder: Path) -> Any:
    dist.init_process_group("gloo")
    run = parts(1)
    train(run, 2)
    seed(100 + world.rank)
    random.gauss(0, 1)
    path = save(folder, place(world_size=world.world_size), *run)
    drawn, state = next_draws(), everything(run)[:-3]
    dist.destroy_process_group()
    return path, drawn, state


def load_on_ranks(world: Any, inherited: Any, path: Path) -> Any:
    dist.init_process_group("gloo")
    answers = []
    for number in (5, 6):
        run = parts(number + 10 * world.rank)
        read = load(path if world.rank == 0 else path / "nowhere", *run)
        answers.append((read, next_draws(), everything(run)[:-3]))
    assert answers[0] == answers[1]
    dist.destroy_process_group()
    return answers[0]


def fail_on_ranks(world: Any, inherited: Any, path: Path, odd_rank: int | None) -> str:
    dist.init_process_group("gloo")
    run = wider() if world.rank == odd_rank else parts(8)
    before = everything(run)
    with pytest.raises((RunFailed, UsageError)) as refused:
        load(path if world.rank == 0 else path / "nowhere", *run)
    assert everything(run) == before
    dist.barrier()  # all are still in step
    dist.destroy_process_group()
    return str(refused.value)


def save_in_vain(world: Any, inherited: Any, folder: Path) -> str:
    dist.init_process_group("gloo")
    with pytest.raises(RunFailed) as refused:
        save(folder, place(world_size=world.world_size), *parts())
    dist.barrier()
    dist.destroy_process_group()
    return str(refused.value)


def test_a_run_goes_on_with_fewer_and_with_more_ranks(tmp_path: Path) -> None:
    saved = on_ranks(tmp_path, 3, save_on_ranks, tmp_path / "saved")
    path, _, state = saved[0]
    drawn = [draws for _, draws, _ in saved]
    assert len({tuple(each) for each in drawn}) == 3
    for nproc in (2, 4):
        loaded = on_ranks(tmp_path, nproc, load_on_ranks, path)
        assert {read.world_size for read, _, _ in loaded} == {3}
        assert all(each == state for _, _, each in loaded)
        assert [draws for _, draws, _ in loaded][:3] == drawn[:nproc]
    fresh = loaded[3][1]
    assert not set(fresh) & {number for each in drawn for number in each}
    model, optimizer, schedule = parts(9)
    assert replace(load(path, model, optimizer, schedule), world_size=1) == place()
    assert next_draws() == drawn[0]


def test_an_error_on_one_rank_ends_all_and_changes_none(tmp_path: Path) -> None:
    path, _, _ = on_ranks(tmp_path, 2, save_on_ranks, tmp_path / "saved")[0]
    other = on_ranks(tmp_path, 3, fail_on_ranks, path, 1)
    assert all("last.weight: float32[7, 6] here" in said for said in other)
    assert "rank 1 cannot take the checkpoint" in other[2]
    (path / "optimizer.safetensors").unlink()
    assert all("optimizer.safetensors" in said for said in on_ranks(tmp_path, 2, fail_on_ranks, path, None))
    (tmp_path / "a file").touch()
    assert all(
        "could not be written" in said for said in on_ranks(tmp_path, 2, save_in_vain, tmp_path / "a file")
    )
