"""The public functions that choose among stages: PyTorch is imported when one needs it."""

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from blockbuster_fusion import compiler
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.array.trace import ArraySpec
from blockbuster_fusion.errors import BadConfig, MissingPackage, WrongKind
from blockbuster_fusion.explorer.exploration import Exploration, explore_program
from blockbuster_fusion.interp.runner import interpreted
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.plans.plan import Plan
from blockbuster_fusion.plans.programs import plan_program, planned_config
from blockbuster_fusion.schedule.config import Config

if TYPE_CHECKING:
    from blockbuster_fusion.torch.explain import Explanation
    from blockbuster_fusion.torch.export import ExportedModel
    from blockbuster_fusion.torch.rivals.custom import CustomOperator

PROGRAM_OPTIONS = ("target", "sizes", "dtype", "rules", "unit", "name", "batch")
"""The options of `compile` that a plan of a program may have."""
CONFIGURING = ("config", "snapshot", "tiles", "schedule", "lengths")
"""The options of `compile` that a plan stands for."""

compiler.RUNNERS["interpret"] = interpreted  # no stage imports the interpreter


def explain(
    model: Any,
    *inputs: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    measure: bool = False,
    time: bool = False,
    **named: Any,
) -> "Explanation":
    """Tells what becomes of each operator of a model when it is called with these inputs.

    `model` is a module, a function or an exported program; `mode`, `options` and `dynamic` are what
    torch.compile would be given. With `measure`, the time of each step is measured; else those of
    kernels are predicted. `time` is the same.
    """
    _check_torch("explain")
    from blockbuster_fusion.torch.explain import explain as explained

    measure = measure or time
    return explained(
        model, *inputs, mode=mode, options=options, dynamic=dynamic, measure=measure, **named
    )


def plan(
    model: Any,
    *inputs: Any,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    **named: Any,
) -> Plan:
    """The kernels and library operators that run a model or a program, each with its reason.

    A PyTorch model is given as to `explain`. A function over arrays is given with specs and options
    as to `compile`, an array program with options alone; `sizes` has the lengths of all axes.
    """
    if _is_program(model, inputs, named):
        return plan_program(compiler.Request(model, inputs, **_request_options(named)))
    _check_torch("plan")
    from blockbuster_fusion.torch.planned.make import plan as planned

    return planned(model, *inputs, mode=mode, options=options, dynamic=dynamic, **named)


def explore(program: Any, *inputs: Any, **options: Any) -> Exploration:
    """A page with every step of a program, or with the whole plan of a PyTorch model.

    A function over arrays is given with specs, as to `compile`; an array program or a block program
    alone. `sizes` has lengths for the figures, by axis or symbol, and `rules` is the rule set. A
    model is given as to `explain`: a module, a function with tensors, or an exported program; with
    `measure`, its steps are measured, or each snapshot of an array program. An explanation of
    `explain` is taken as well. The result has `.html()` and `.save(path)`, and shows itself in a
    notebook.
    """
    torch_explain = sys.modules.get("blockbuster_fusion.torch.explain")
    is_explained = torch_explain is not None and isinstance(program, torch_explain.Explanation)
    if not is_explained and not _is_torch_call(program, inputs, options):
        return explore_program(program, *inputs, **options)
    _check_torch("explore")
    from blockbuster_fusion.explorer import model

    if is_explained and (inputs or options):
        remedy = "explain the model with them"
        given = "inputs or options beside it"
        raise WrongKind(
            function="explore", wanted="an explanation alone", given=given, remedy=remedy
        )
    return model.explored(program) if is_explained else model.explore(program, *inputs, **options)


def _planned(program: Any, specs: tuple[Any, ...], options: Mapping[str, Any]) -> Config:
    """The configuration that a plan has for a program; the plan may be given as a file."""
    given = options["plan"]
    plan = given if isinstance(given, Plan) else Plan.load(given)
    for name in CONFIGURING:
        if options.get(name) is not None:
            remedy = "a plan has a configuration"
            wanted, found = "a plan alone", f"{name} too"
            raise WrongKind(function="compile", wanted=wanted, given=found, remedy=remedy)
    beside = ("plan", "threads", *CONFIGURING)
    rest = {name: x for name, x in options.items() if name not in beside}
    return planned_config(plan, compiler.Request(program, specs, **_request_options(rest)))


def _is_program(model: object, inputs: Iterable[object], named: Mapping[str, object]) -> bool:
    """True for an array program, and for a function with specs of its arrays."""
    if isinstance(model, ArrayProgram | Graph):
        return True
    given = [*inputs, *(x for name, x in named.items() if name not in PROGRAM_OPTIONS)]
    is_torch = _is_torch_call(model, inputs, named)
    return not is_torch and all(isinstance(x, str | tuple | ArraySpec) for x in given)


def _request_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a request; all else are specs by name."""
    chosen = {name: x for name, x in given.items() if name in PROGRAM_OPTIONS}
    return {**chosen, "named": {name: x for name, x in given.items() if name not in chosen}}


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
    called once with the examples. Otherwise see `blockbuster_fusion.compiler.compile`. `plan` is a
    plan of `plan`, or its file: then nothing is searched.
    """
    if _is_torch_call(program, specs, options):
        from blockbuster_fusion.torch.model import compile_model

        return compile_model(program, *specs, **options)
    if options.get("plan") is not None:
        options["config"] = _planned(program, specs, options)
    options.pop("plan", None)
    config = options.get("config")
    if config is not None and not isinstance(config, Config | Mapping):
        problem = f"{config!r} is no configuration; give a mapping, as Config.data() has it"
        raise BadConfig(name="config", problem=problem)
    return compiler.compile(program, *specs, **options)


def _is_torch_call(model: object, given: Iterable[object], named: Mapping[str, object]) -> bool:
    """True if PyTorch's model or tensors are given."""
    return any(map(_is_torch, [model, *given, *named.values()]))


def _is_torch(x: object) -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(x, list | tuple):
        return any(map(_is_torch, x))
    kinds = (torch.Tensor, torch.nn.Module, torch.export.ExportedProgram)
    return isinstance(x, kinds)


def _check_torch(function: str) -> None:
    try:
        from blockbuster_fusion.torch import backend as _  # noqa: F401
    except ImportError as error:
        name = error.name or "torch"
        raise MissingPackage(function=function, package=name, extra="torch") from error
