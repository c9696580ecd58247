"""The public functions that choose among stages: PyTorch is imported when one needs it."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blockbuster_fusion import compiler
from blockbuster_fusion.errors import BadConfig, MissingPackage
from blockbuster_fusion.interp.runner import interpreted
from blockbuster_fusion.schedule.space import Config

if TYPE_CHECKING:
    from blockbuster_fusion.torch.explain import Explanation
    from blockbuster_fusion.torch.export import ExportedModel
    from blockbuster_fusion.torch.rivals.custom import CustomOperator

compiler.RUNNERS["interpret"] = interpreted  # no stage imports the interpreter


def explain(
    model: Any,
    *inputs: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    time: bool = False,
    **named: Any,
) -> "Explanation":
    """Tells what becomes of each operator of a model when it is called with these inputs.

    `model` is a module, a function or an exported program; `mode`, `options` and `dynamic` are what
    torch.compile would be given. With `time`, the time of each part is measured.
    """
    _check_torch("explain")
    from blockbuster_fusion.torch.explain import explain as explained

    return explained(
        model, *inputs, mode=mode, options=options, dynamic=dynamic, time=time, **named
    )


def from_torch(program: Any, **options: Any) -> "ExportedModel":
    """A program of torch.export, fused and compiled, to be called as the model was."""
    _check_torch("from_torch")
    from blockbuster_fusion.torch.export import from_torch as exported

    return exported(program, **options)


def custom_operator(operator: Any, definition: Any, *inputs: Any) -> "CustomOperator":
    """A PyTorch operator of yours, for the option `operators` of models that may use it.

    `definition` is a function that computes the same by PyTorch's operators; both take `inputs`.
    Arrays among them are examples: others may have other sizes. Everything else is a constant.
    """
    _check_torch("custom_operator")
    from blockbuster_fusion.torch.custom import custom_operator as declared

    return declared(operator, definition, *inputs)


def tune(
    model: Any,
    *inputs: Any,
    seconds: float = 600.0,
    target: str | None = None,
    workers: int | None = None,
    ray: str | None = None,
    **named: Any,
) -> Any:
    """Measures configurations of the kernels of a program or a model, and keeps the best.

    With an array program, `inputs` are its arrays, and the result has the best `config` and
    the `executable`. With a PyTorch model it is the model compiled with `mode="max-autotune"`. Each
    configuration is checked against float64 before it may win. Ctrl-C keeps what was found.
    `workers` configurations are compiled at a time, by default one for each core. `ray` is the
    address of a Ray cluster that measures: "auto", "local" or HOST:PORT.
    """
    _check_torch("tune")
    from blockbuster_fusion.torch.tune import tune as tuned

    return tuned(model, *inputs, seconds=seconds, target=target, workers=workers, ray=ray, **named)


def register_backend() -> None:
    """Make `torch.compile(model, backend="blockbuster")` work without an installed package."""
    _check_torch("register_backend")
    from blockbuster_fusion.torch.backend import register_backend as register

    register()


def compile(program: Any, *specs: Any, **options: Any) -> Any:
    """A program, function or PyTorch module, compiled.

    With a module, or with tensors as examples, it is torch.compile with the backend "blockbuster",
    called once with the examples. Otherwise see `blockbuster_fusion.compiler.compile`.
    """
    if _is_torch(program) or any(map(_is_torch, [*specs, *options.values()])):
        from blockbuster_fusion.torch.model import compile_model

        return compile_model(program, *specs, **options)
    config = options.get("config")
    if config is not None and not isinstance(config, Config | Mapping):
        problem = f"{config!r} is no configuration; give a mapping, as Config.data() has it"
        raise BadConfig(name="config", problem=problem)
    return compiler.compile(program, *specs, **options)


def _is_torch(x: object) -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(x, list | tuple):
        return any(map(_is_torch, x))
    return isinstance(x, torch.Tensor | torch.nn.Module)


def _check_torch(function: str) -> None:
    try:
        from blockbuster_fusion.torch import backend as _  # noqa: F401
    except ImportError as error:
        name = error.name or "torch"
        raise MissingPackage(function=function, package=name, extra="torch") from error
