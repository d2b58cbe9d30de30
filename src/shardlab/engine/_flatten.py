"""A training run taken apart into named tensors and plain values, and put together again.

What is put together is looked at first and changed later: :func:`model_change`, :func:`optimizer_change`,
:func:`schedule_change` raise where something does not fit, and return what there is
left to do. So a checkpoint that does not fit changes nothing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer

from shardlab.errors import UsageError

Tensors = dict[str, torch.Tensor]
Change = Callable[[], None]

_DTYPES = frozenset({  # what safetensors both writes and reads
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.complex64,
})  # fmt: skip
_AS_SAVED = "build it as it was when it was saved"


class OptimizerFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is no tensor in an optimiser.

    ``groups`` are the packed options of its parameter groups, ``shapes`` those of the parameters of each, and
    ``values`` the plain values of the states, by ``PARAMETER.KEY``, as its tensors are.
    """

    groups: list[dict[str, Any]]
    shapes: list[list[list[int]]]
    values: dict[str, Any]


def packed(value: Any, where: str) -> Any:
    """A plain value as JSON that reads back as the same types. Raises UsageError naming ``where`` for others."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if type(value) in (list, tuple):
        items = [packed(item, f"{where}[{place}]") for place, item in enumerate(value)]
        return items if type(value) is list else {"tuple": items}
    if type(value) in (dict, Counter):
        pairs = [[packed(key, where), packed(inner, f"{where}.{key}")] for key, inner in value.items()]
        return {"dict" if type(value) is dict else "counter": pairs}
    raise UsageError(
        f"{where} must be a plain value to be saved",
        type(value).__name__,
        ["bool", "int", "float", "str", "None", "lists, tuples and dicts of these"],
        "give a plain number, or train without it",
    )


def unpacked(value: Any) -> Any:
    """What :func:`packed` was given. Raises ValueError or TypeError for what it never writes."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [unpacked(item) for item in value]
        case {"float": str(text)}:
            return float(text)
        case {"tuple": list(items)}:
            return tuple(unpacked(item) for item in items)
        case {"dict": list(pairs)}:
            return {unpacked(key): unpacked(inner) for key, inner in pairs}
        case {"counter": list(pairs)}:
            return Counter({unpacked(key): unpacked(inner) for key, inner in pairs})
    raise ValueError(f"{value!r} is no packed value")


def model_parts(model: nn.Module) -> tuple[Tensors, dict[str, str]]:
    """The parameters and buffers by name, copied to memory; and the other names of those that have several."""
    state = model.state_dict()
    for name, tensor in state.items():
        _check_tensor(f"{name} of the model", tensor)
    tied = _tied(model)
    return {name: _copy(tensor) for name, tensor in state.items() if name not in tied}, tied


def model_change(model: nn.Module, tensors: Tensors, tied: dict[str, str]) -> Change:
    """Raises UsageError, naming the first difference, where the model has other tensors than were saved."""
    state = model.state_dict()
    saved = {**tensors, **{name: tensors[first] for name, first in tied.items()}}
    rule = "the model must have the tensors of the checkpoint"
    _refuse_difference(rule, _described(state), _described(saved))
    _refuse_difference("the model must share the tensors that the checkpoint shares", _tied(model), tied)
    state.update(saved)  # in its own dict: that has the versions of the modules, which loading them asks for

    def change() -> None:
        model.load_state_dict(state)

    return change


def optimizer_parts(optimizer: Optimizer) -> tuple[Tensors, OptimizerFacts]:
    """The tensors of the states of all parameters, by ``PARAMETER.KEY``, copied to memory; and the rest."""
    state = optimizer.state_dict()
    tensors: Tensors = {}
    values: dict[str, Any] = {}
    for number, of_parameter in state["state"].items():
        for key, value in of_parameter.items() if isinstance(number, int) else [("", of_parameter)]:
            name = f"{number}.{key}"
            if isinstance(value, torch.Tensor):
                _check_tensor(f"{name} of the optimiser", value)
                tensors[name] = _copy(value)
            else:
                values[name] = packed(value, f"{name} of the optimiser")
    groups = [
        {key: packed(value, f"{key} of the optimiser") for key, value in group.items() if key != "params"}
        for group in state["param_groups"]
    ]
    return tensors, OptimizerFacts(groups, _shapes(optimizer), values)


def optimizer_change(optimizer: Optimizer, tensors: Tensors, facts: OptimizerFacts) -> Change:
    """Raises UsageError where the optimiser has other parameters or options than the one that was saved."""
    rule = "the optimiser must have the parameters of the checkpoint"
    _refuse_difference(rule, _numbered(_shapes(optimizer)), _numbered(facts.shapes))
    groups = [{key: unpacked(value) for key, value in group.items()} for group in facts.groups]
    for group, own in zip(groups, optimizer.state_dict()["param_groups"], strict=True):
        if lacking := sorted(set(optimizer.defaults) - set(group)):
            raise UsageError(
                "the optimiser must have the options of the checkpoint",
                f"{lacking[0]}, which was not saved",
                cure=_AS_SAVED,
            )
        group["params"] = own["params"]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    values = {name: unpacked(value) for name, value in facts.values.items()}
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **values}.items():
        number, _, key = name.partition(".")
        if not 0 <= int(number) < len(parameters):
            raise ValueError(f"state of a parameter {number} that there is not")
        state.setdefault(int(number), {})[key] = value

    def change() -> None:
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        # Loading gives a state the dtype of its parameter, and may go on with the tensors it was given.
        for number, of_parameter in state.items():
            parameter = parameters[number]
            now = optimizer.state[parameter]
            for key, value in of_parameter.items():
                if isinstance(value, torch.Tensor):
                    now[key] = _placed(value, parameter, now[key].device)

    return change


def schedule_parts(schedule: Any) -> Any:
    """The packed state of a scheduler; None where there is none."""
    return None if schedule is None else packed(schedule.state_dict(), "the schedule's state")


def schedule_change(schedule: Any, saved: Any) -> Change:
    """Raises UsageError where the schedule is of another kind than the one that was saved."""
    state = unpacked(saved)
    own = None if schedule is None else schedule.state_dict()
    rule = "the schedule must be of the kind in the checkpoint"
    _refuse_difference(rule, *(dict.fromkeys(each or (), "there") for each in (own, state)))

    def change() -> None:
        if schedule is not None:
            schedule.load_state_dict(state)

    return change


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """In memory of its own, as safetensors wants it."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _placed(value: torch.Tensor, parameter: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on the device, laid out as the parameter where it has its shape."""
    like = parameter if value.shape == parameter.shape else value
    return torch.empty_like(like, dtype=value.dtype, device=device, requires_grad=False).copy_(value)


def _check_tensor(where: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.dtype not in _DTYPES:
        kind = f"{value.layout}, {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
        names = sorted(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise UsageError(f"{where} must be a dense tensor of a dtype that can be saved", kind, names)


def _tied(model: nn.Module) -> dict[str, str]:
    """The names of tensors that are the memory of an earlier one, and its name."""
    first: dict[Any, str] = {}
    tied = {}
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            memory = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if (kept := first.setdefault(memory, name)) != name:
                tied[name] = kept
    return tied


def _shapes(optimizer: Optimizer) -> list[list[list[int]]]:
    return [[list(each.shape) for each in group["params"]] for group in optimizer.param_groups]


def _numbered(shapes: list[list[list[int]]]) -> dict[str, str]:
    return {
        f"parameter {place} of group {group}": str(shape)
        for group, of_group in enumerate(shapes)
        for place, shape in enumerate(of_group)
    }


def _described(state: Mapping[str, Any]) -> dict[str, str]:
    """Dtype and shape of each tensor."""
    described = {}
    for name, value in state.items():
        _check_tensor(f"{name} of the model", value)
        described[name] = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return described


def _refuse_difference(rule: str, own: dict[str, str], saved: dict[str, str]) -> None:
    for name in {**own, **saved}:
        here, there = own.get(name, "nothing"), saved.get(name, "nothing")
        if here != there:
            raise UsageError(rule, f"{name}: {here} here, {there} in the checkpoint", cure=_AS_SAVED)
