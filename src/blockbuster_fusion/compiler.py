"""The compiler: Request → Choice → Executable. It alone knows the order of the stages."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from blockbuster_fusion.array.arrays import as_dtype
from blockbuster_fusion.array.exact_products import with_exact_products
from blockbuster_fusion.array.lower import lower
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.array.trace import Spec, trace
from blockbuster_fusion.choice import Choice
from blockbuster_fusion.errors import BadTarget, BlockbusterError, NoKernel, WrongKind
from blockbuster_fusion.improve import Elsewhere, by_lengths
from blockbuster_fusion.ir.axis import Dim, Symbol
from blockbuster_fusion.ir.graph import Graph
from blockbuster_fusion.ir.ops import Input
from blockbuster_fusion.ir.sizes import with_sizes
from blockbuster_fusion.ir.tiling import Tiles, given_extents, given_tiles
from blockbuster_fusion.ir.types import DType
from blockbuster_fusion.messages import log
from blockbuster_fusion.nest.analysis.shared_memory import USUAL_SHARED, shared_limit
from blockbuster_fusion.nest.nest import Nest
from blockbuster_fusion.nest.shares import axis_of_parts
from blockbuster_fusion.progress import doing
from blockbuster_fusion.rules.sets import RuleSet
from blockbuster_fusion.runtime.bound import CompiledNest, Kernels
from blockbuster_fusion.runtime.compiled import Compiled
from blockbuster_fusion.runtime.executable import Executable, Runner
from blockbuster_fusion.runtime.machines import this_cpu
from blockbuster_fusion.safety.pipeline import make_safe
from blockbuster_fusion.safety.storage import NARROW, Storage, stored_as
from blockbuster_fusion.schedule.config import Config
from blockbuster_fusion.schedule.defaults import by_estimate, default_tiles
from blockbuster_fusion.schedule.early import can_start_early
from blockbuster_fusion.schedule.schedule import Schedule
from blockbuster_fusion.schedule.snapshots import Snapshot, chosen_snapshots
from blockbuster_fusion.schedule.target_model import model_for

T = TypeVar("T")


Program = Callable[..., Any] | ArrayProgram | Graph


@dataclass(frozen=True)
class Request:
    """A program and the options of its compilation, as `compile` describes them."""

    program: Program
    specs: tuple[Spec, ...] = ()
    named: Mapping[str, Spec] = field(default_factory=dict)
    _: KW_ONLY
    target: str = "cpu"
    snapshot: Snapshot = None
    tiles: Tiles | None = None
    sizes: Mapping[str, int] | None = None
    dtype: str | Storage | None = None
    rules: str | RuleSet = "extended"
    unit: Collection[Dim | str] | None = None
    schedule: Schedule | None = None
    config: Config | None = None
    name: str | None = None
    batch: str | Iterable[str] = ()
    capability: int | None = None
    """The compute capability of the GPU, where one is known: 90 for sm_90."""
    keeps_inputs: bool = False
    """True if products do not round inputs that are stored as float32 beside others in 16 bits.
    A model says so itself, product by product."""

    def __post_init__(self) -> None:
        model_for(self.target)
        _check_mapping("tiles", self.tiles, "{'M': 64}")
        _check_mapping("sizes", self.sizes, "{'D': 64}")
        chosen = (self.snapshot, self.tiles, self.schedule)
        if self.config is not None and any(option is not None for option in chosen):
            remedy = "a configuration has all three"
            wanted, given = "config alone", "snapshot, tiles or schedule too"
            raise WrongKind(function="compile", wanted=wanted, given=given, remedy=remedy)

    @cached_property
    def stored(self) -> Storage | None:
        """The dtypes that float32 arrays are stored in."""
        if isinstance(self.dtype, Mapping):  # by the names of inputs and outputs
            return {name: as_dtype(dtype) for name, dtype in self.dtype.items()}
        return as_dtype(self.dtype) if isinstance(self.dtype, str) else self.dtype

    @property
    def shared(self) -> int:
        """The bytes of shared memory that one program of a kernel may take on the GPU."""
        return USUAL_SHARED if self.capability is None else shared_limit(self.capability)

    def as_stored(self, graph: Graph) -> Graph:
        """A program with its arrays in the dtypes that they are stored in."""
        return graph if self.stored is None else stored_as(graph, self.stored)

    def traced(self) -> ArrayProgram | Graph:
        """The program: as it was given, or traced from a function."""
        program = self.program
        if isinstance(program, ArrayProgram | Graph):
            self._check_alone()
            return program
        if callable(program):
            declared = DType.float64 if self.stored is DType.float64 else DType.float32
            return trace(
                program,
                *self.specs,
                name=self.name,
                batch=self.batch,
                dtype=declared,
                **self.named,
            )
        wanted = "a function, an array program or a block program"
        given, remedy = type(program).__name__, "bb.trace makes a program from a function"
        raise WrongKind(function="compile", wanted=wanted, given=given, remedy=remedy)

    def block_program(self) -> tuple[Graph, str]:
        """The block program with the sizes that are fixed, and its name."""
        program = self.traced()
        if isinstance(program, ArrayProgram) and isinstance(self.stored, Mapping):
            narrow = {name for name, dtype in self.stored.items() if dtype in NARROW}
            is_mixed = self.keeps_inputs and bool(narrow)
            program = with_exact_products(program, narrow) if is_mixed else program
        graph = program if isinstance(program, Graph) else lower(program)
        name = "program" if isinstance(program, Graph) else program.name
        return with_known_sizes(graph, self.sizes or {}), self.name or name

    def _check_alone(self) -> None:
        """Raises WrongKind if specs, or a dtype to declare, come with a program that is traced."""
        given = [*map(str, self.specs), *self.named]
        if given:
            remedy = "give specs for a function only"
            raise WrongKind(
                function="compile", wanted="a program alone", given=given[0], remedy=remedy
            )
        dtype = self.stored
        if isinstance(dtype, DType) and (not dtype.is_float or dtype is DType.float64):
            remedy = f"declare {dtype} where the program is traced"
            wanted = "a dtype to store float32 as: float32, bfloat16 or float16"
            raise WrongKind(function="compile", wanted=wanted, given=str(dtype), remedy=remedy)


def _check_mapping(option: str, given: object, example: str) -> None:
    if given is not None and not isinstance(given, Mapping):
        wanted, remedy = f"{option} by name", f"write {option}={example}"
        raise WrongKind(function="compile", wanted=wanted, given=repr(given), remedy=remedy)


@doing("compiling a program")
def compile(
    program: Program,
    *specs: Spec,
    target: str = "cpu",
    snapshot: Snapshot = None,
    tiles: Tiles | None = None,
    sizes: Mapping[str, int] | None = None,
    dtype: str | Storage | None = None,
    rules: str | RuleSet = "extended",
    unit: Collection[Dim | str] | None = None,
    schedule: Schedule | None = None,
    config: Config | Mapping[str, Any] | None = None,
    lengths: Mapping[str, Sequence[int]] | None = None,
    threads: int | None = None,
    name: str | None = None,
    batch: str | Iterable[str] = (),
    **named: Spec,
) -> Executable:
    """The program fused, made numerically safe and compiled, to be called with arrays.

    A function is traced with `specs`, as `trace` has them. `target` is "cpu" (C), "cuda" (Triton)
    or "interpret". `sizes` fixes sizes by symbol or axis: `{"DD": 64}`; the others are taken from
    the arrays of each call. No call compiles anything, but for the first with arrays without
    elements: that compiles the program before fusion. `dtype` is how float32 arrays are stored:
    "bfloat16" or "float16", or by the names of inputs and outputs; what is computed stays float32.
    `snapshot` is one of the fusion's snapshots, "most_fused", or by default the one with
    the least estimated time. `unit` names axes that have one block, `tiles` gives block sizes;
    schedule/defaults.py says what they are where nothing is said. `schedule` says how loops are run
    (schedule/schedule.py): by default, on a CPU the outer parallel loops are the grid, on a GPU
    all. `config` has snapshot, tiles and schedule at once (schedule/config.py), as tuning gives it.
    `lengths` has lengths that sizes may have in calls, the usual one first: `{"M": (16, 1, 4096)}`.
    Configurations are then searched for each, and serve the sizes near it; for the CPU only.
    `threads` is for the CPU: by default, all that there are.
    """
    check_target(target)
    request = Request(
        program,
        specs,
        named,
        target=target,
        snapshot=snapshot,
        tiles=tiles,
        sizes=sizes,
        dtype=dtype,
        rules=rules,
        unit=unit,
        schedule=schedule,
        config=Config.from_data(config) if isinstance(config, Mapping) else config,
        name=name,
        batch=batch,
        capability=capability_of(target),
        keeps_inputs=True,
    )
    return _built(request, lengths, threads)


def _built(
    request: Request, lengths: Mapping[str, Sequence[int]] | None, threads: int | None
) -> Executable:
    """The executable of a request, with a configuration for each of some lengths if there are any.

    See `compile`.
    """
    choices = choose(request)
    if not lengths:
        return executable_of(choices, threads)
    _check_mapping("lengths", lengths, "{'M': (16, 1, 4096)}")
    _check_lengths(request)
    best, elsewhere = by_lengths(choices, lengths, this_cpu(threads))
    return executable_of(best, threads, elsewhere)


def _check_lengths(request: Request) -> None:
    """Raises WrongKind if a configuration is to be searched, and is given or for another target."""
    given = [request.tiles, request.schedule, request.config]
    if request.target != "cpu" or any(option is not None for option in given):
        remedy = "leave out lengths, or tiles, schedule and config"
        wanted, found = "lengths for the target 'cpu' and no configuration", "both"
        raise WrongKind(function="compile", wanted=wanted, given=found, remedy=remedy)


def executable_of(
    choices: Sequence[Choice], threads: int | None = None, elsewhere: Elsewhere | None = None
) -> Executable:
    """The first of some choices that kernels can be made for, compiled.

    `elsewhere` has the choices for other sizes, which are compiled too.
    """
    others = elsewhere or Elsewhere()
    return first_with_kernels(choices, lambda choice: _executable(choice, threads, others))


def choose(request: Request) -> list[Choice]:
    """The programs that `compile` would make kernels of, the best first; nothing is compiled."""
    config = request.config
    if config is not None:
        request = replace(
            request,
            snapshot=config.snapshot,
            tiles=dict[Dim | str, int](config.tiles.items()),
            schedule=config.schedule,
            config=None,
        )
    (graph, title), target = request.block_program(), request.target
    snapshots = chosen_snapshots(graph, request.rules, request.unit, request.stored, target)
    if request.snapshot is None or config is not None:  # one that tuning has chosen from all
        snapshots = snapshots.with_base()
    graphs = snapshots.graphs
    of_kernels = config is not None
    shares = [] if config is None else config.schedule.split.items()
    parts = [Dim(axis_of_parts(axis, count)) for axis, count in shares]
    given = [
        given_tiles([*g.dims, *graph.dims, *parts], request.tiles, of_kernels=of_kernels)
        for g in graphs
    ]
    tiles = [default_tiles(g, target, own) for g, own in zip(graphs, given, strict=True)]
    numbers = snapshots.wanted(
        request.snapshot, lambda: by_estimate(graphs, tiles, target, snapshots.own)
    )
    return [
        Choice(
            graphs[n],
            n,
            tiles[n] if config is None else {**given[n], **tiles[n]},
            target,
            title,
            request.schedule or Schedule(grid="outer" if target == "cpu" else "all"),
            lambda: make_safe(request.as_stored(graph)).graph,
            given=frozenset(given[n]),
            shared=request.shared,
            may_start_early=request.capability is None or can_start_early(request.capability),
            fused=snapshots.safe[n].source,
        )
        for n in numbers
    ]


def first_with_kernels(choices: Sequence[Choice], make: Callable[[Choice], T]) -> T:
    """Returns what `make` gives for the first choice that kernels can be made for."""
    for choice in choices[:-1]:
        try:
            return make(choice)
        except NoKernel:
            continue
    return make(choices[-1])


def check_target(target: str) -> None:
    """Raises BadTarget if this machine cannot run programs for a target."""
    model_for(target)
    if target != "cuda":
        return
    try:
        from blockbuster_fusion.runtime.triton.device import NO_GPU, can_launch
    except ImportError as error:
        raise lacks(target, error) from error
    if not can_launch():
        raise BadTarget(name=target, problem=NO_GPU)


def capability_of(target: str) -> int | None:
    """The compute capability of the GPU, if the target is one and there is one."""
    if target != "cuda":
        return None
    from blockbuster_fusion.runtime.triton.device import capability

    return capability()


def lacks(target: str, error: ImportError) -> BadTarget:
    """The error for a target that needs a package which is missing."""
    problem = f"it needs torch and triton, and there is no {error.name}"
    return BadTarget(name=target, problem=problem)


def unfused(program: ArrayProgram, sizes: Mapping[str, int]) -> Graph:
    """The program before fusion, numerically safe, with some sizes fixed: the reference."""
    return make_safe(with_known_sizes(lower(program), sizes)).graph


def with_known_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The program with some of its sizes fixed, by symbol or axis."""
    axes = {dim.axis for dim in graph.dims}
    extents = given_extents(axes, sizes)
    symbols = {a.extent: a for a in axes if isinstance(a.extent, Symbol) and extents.knows(a)}
    return with_sizes(graph, {symbol: extents.of(axis) for symbol, axis in symbols.items()})


def _executable(choice: Choice, threads: int | None, elsewhere: Elsewhere) -> Executable:
    runner = RUNNERS[choice.target](choice, threads, elsewhere)
    configs = [choice.config, *(other.config for other in elsewhere.choices)]
    ranges = tuple((words, configs[number]) for words, number in elsewhere.ranges)
    made = (choice.graph, choice.target, runner.tiles, choice.snapshot, runner)
    return Executable(*made, ranges, choice.config)


def _compiled(choice: Choice, threads: int | None, elsewhere: Elsewhere | None = None) -> Compiled:
    """The kernels of a choice; those of the program before fusion are made when needed."""
    before, others = choice.before_fusion, elsewhere or Elsewhere()
    with ThreadPoolExecutor() as pool:  # what takes long is the C compiler, another process
        made = [pool.submit(_program, x, threads) for x in others.choices]
        usual = _program(choice, threads)
    return Compiled(
        [usual, *(_unless_refused(other, usual) for other in made)],
        others.ranges,
        device=choice.target,
        unfused=before and (lambda: _compiled(before(), threads)),
    )


def _program(choice: Choice, threads: int | None) -> CompiledNest:
    """The kernels of a choice alone."""
    graph = choice.graph
    nest, tiles = choice.scheduled()
    names = [op.name for i in graph.inputs if isinstance(op := graph.op(i), Input)]
    return CompiledNest(nest, tuple(names), tiles, _kernels(nest, tiles, choice, threads))


def _unless_refused(made: "Future[CompiledNest]", usual: CompiledNest) -> CompiledNest:
    """The program that was made, or the usual one if there is no kernel for it."""
    try:
        return made.result()
    except BlockbusterError as error:  # whatever it is, the usual kernels serve all sizes
        log.warning("the usual kernels serve a range: %s", error)
        return usual


MakeRunner = Callable[[Choice, int | None, Elsewhere], Runner]
"""Makes the runner of a choice with a number of threads, and of the choices for other sizes."""

RUNNERS: dict[str, MakeRunner] = {"cpu": _compiled, "cuda": _compiled}
"""The runners of targets; the package adds that of the target "interpret"."""


def _kernels(nest: Nest, tiles: Mapping[Dim, int], choice: Choice, threads: int | None) -> Kernels:
    if choice.target == "cpu":
        from blockbuster_fusion.runtime.c.kernels import CpuKernels

        schedule = choice.schedule
        return CpuKernels(
            nest,
            tiles,
            threads=threads,
            chosen=schedule.threads,
            chunk=schedule.chunk,
            past=schedule.past,
        )
    try:
        from blockbuster_fusion.runtime.triton.launch import TritonKernels
    except ImportError as error:
        raise lacks(choice.target, error) from error
    options = choice.schedule.launch
    kernels: Kernels = TritonKernels(nest, tiles, options=options, shared=choice.shared)
    return kernels
