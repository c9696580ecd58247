"""Every error of the package: what is wrong, where, and what to do."""


class BlockbusterError(Exception):
    """Base of all errors that the package raises on purpose.

    `template` is the sentence; keyword arguments fill it and stay attributes of the error.
    """

    template = "{message}"

    def __init__(self, **details: object) -> None:
        self.details = details
        super().__init__(self.template.format(**details))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (type(self), self.details)

    def __getattr__(self, name: str) -> object:
        try:
            return self.__dict__["details"][name]
        except KeyError:
            raise AttributeError(name) from None


def _rebuilt(kind: type[BlockbusterError], details: dict[str, object]) -> BlockbusterError:
    """The error that was pickled or copied."""
    return kind(**details)


class WrongKind(BlockbusterError):
    """An argument has the wrong type."""

    template = "{function}: takes {wanted}, not {given}; {remedy}"


class IllTyped(BlockbusterError):
    """The operands of an operator have the wrong types."""

    template = "{op}: {problem}"


class InvalidGraph(BlockbusterError):
    """A graph breaks one of the rules of block programs."""

    template = "{place}: {problem}{neighbours}"


class CyclicGraph(BlockbusterError):
    """The nodes of a graph form a cycle."""

    template = (
        "nodes {nodes} depend on one another in a cycle: a block program has no loops but maps"
    )


class BadText(BlockbusterError):
    """The text form of a program cannot be read."""

    template = "line {line}, column {column}: {problem}"


class BadTrace(BlockbusterError):
    """A saved fusion trace cannot be read or does not fit its program."""

    template = "{place}: {problem}"


class BadPlan(BlockbusterError):
    """The file of a plan cannot be read, or is not what it should be."""

    template = "{place}: {problem}"


class PlanMisfit(BlockbusterError):
    """A plan was made for another model, other shapes or another target."""

    template = "the plan does not fit: {problem}; make one with bb.plan for what is compiled here"


class NotStored(BlockbusterError):
    """A plan does not store an array between its steps."""

    template = "the plan stores no array {array!r} between its steps; it stores {known}"


class BadRecord(BlockbusterError):
    """A measurement for the tuning database, or a file of them, is not what it should be."""

    template = "{place}: {problem}"


class TraceError(BlockbusterError):
    """A Python function cannot be traced into an array program."""

    template = "{op}: {problem}"


class UntracedAttribute(TraceError, AttributeError):
    """A traced array has no attribute of that name."""


class UnknownOperator(BlockbusterError):
    """The lookup table has no such operator."""

    template = "no operator {name!r} in the lookup table: {remedy}"


class BadInput(BlockbusterError):
    """An array that was given to a program does not fit it."""

    template = "input {name}: {problem}"


class BadPlace(BadInput, IndexError):
    """An index of an input is out of range."""


class NoMemory(BlockbusterError):
    """A tensor that a kernel reads or writes has no memory."""

    template = "{tensor} has no memory: {reason}; call it with tensors that hold numbers"


class Untraceable(BlockbusterError):
    """A kernel is called while PyTorch records the operators of a model."""

    template = (
        "{tracer} records PyTorch's operators, and a kernel is none: its result would be a "
        "constant of the trace; trace the model without it, or compile the model for inference"
    )


class BadUnit(BlockbusterError):
    """A dim cannot be given one block."""

    template = "unit {name}: {problem}; the dims that can have one block are {known}"


class BadTile(BlockbusterError):
    """A tile size that cannot be used."""

    template = "tiles[{name!r}]: {problem}"


class BadExtent(BlockbusterError):
    """The extent of an axis is not known, or differs from the given one."""

    template = "extent {name}: {problem}"


class UnknownRules(BlockbusterError):
    """No rule set, or no rule, of that name."""

    template = "unknown {kind} {name!r}: known are {known}"


class LacksBase(BlockbusterError):
    """A rule set names a base whose rules it does not have."""

    template = (
        "rule set {name!r}: its {part} rules lack {missing} of its base {base!r}, or have them in "
        "another order; take the rules themselves from the base, as it has them"
    )


class RuleMisapplied(BlockbusterError):
    """A match does not fit the graph that it is applied to."""

    template = "{rule}: {problem}"


class UnknownExample(BlockbusterError):
    """No example program of that name."""

    template = "unknown example {name!r}: try one of {known}"


class NoExecutor(BlockbusterError):
    """A misc operator has no executor."""

    template = (
        "misc operator {namespace}.{name} has no executor: "
        "register one with interp.register_executor({namespace!r}, run)"
    )


class BadResult(BlockbusterError):
    """The result of an executor of a misc operator differs from the declared type."""

    template = "misc operator {namespace}.{name}: {problem}"


class NoKernel(BlockbusterError):
    """No kernel can be made for a program or a part of one."""

    template = "no kernel: {what}; {remedy}"


class NoCompiler(BlockbusterError):
    """There is no C compiler to compile a kernel with."""

    template = "no C compiler: {problem}; install gcc or clang, or name one in the variable CC"


class CompilerFailed(BlockbusterError):
    """The C compiler has refused a kernel."""

    template = "{command} failed on {source}:\n{message}"


class WorkerFailed(BlockbusterError):
    """A process that compiles kernels for another one has failed."""

    template = "a worker process: {problem}"


class NoCluster(BlockbusterError):
    """There is no Ray cluster at an address."""

    template = (
        "no Ray cluster at {address!r}: {problem}; "
        "start one with `ray start --head`, or write 'local' for one on this machine"
    )


class CacheFailed(BlockbusterError):
    """No folder is writable for a compiled kernel."""

    template = (
        "{folder}: a kernel cannot be written there, nor to the folder for temporary files: "
        "{problem}; free space, or name folders in BLOCKBUSTER_CACHE and TMPDIR"
    )


class LaunchFailed(BlockbusterError):
    """A kernel failed at run time."""

    template = "kernel {name}: {problem}"


class PlaceOutside(BlockbusterError, IndexError):
    """An index in a kernel is outside of the array that it looks up in or stores into."""

    template = (
        "kernel {name}: a lookup or a store is at a place outside of its array's axis; "
        "places are whole numbers from 0 to one less than the axis's length"
    )


class BadTarget(BlockbusterError):
    """A target, or an option of it, that this machine or program does not support."""

    template = "target {name!r}: {problem}"


class BadMachine(BlockbusterError):
    """The description of a machine is incomplete, or it cannot be measured."""

    template = "machine {name}: {problem}"


class BadData(BlockbusterError):
    """Plain data that does not stand for a program or a job."""

    template = "{what}: the data is damaged ({problem}); write it again"


class BadConfig(BlockbusterError):
    """A configuration of kernels has a part that is unknown, or of the wrong kind."""

    template = "configuration, {name}: {problem}"


class BadConstraint(BlockbusterError):
    """A constraint on the parts of a model names no operator, or nothing can meet it."""

    template = "{kind} of {names}: {problem}"


class BadOperator(BlockbusterError):
    """A user's operator cannot stand for its definition."""

    template = "{operator}: {problem}"


class InvalidNest(BlockbusterError):
    """A loop nest breaks one of its rules."""

    template = "kernel {kernel}, {statement}: {problem}"


class NotExpressible(BlockbusterError):
    """An operation of a model cannot be expressed as an array program over named axes."""

    template = "{what} has no form over named axes"


class MissingPackage(BlockbusterError):
    """A function needs a package that is not installed."""

    template = (
        "{function}: needs {package}, which is not installed; "
        "pip install 'blockbuster-fusion[{extra}]'"
    )


class EagerCollective(BlockbusterError):
    """A model that is explained on one rank calls a collective outside of what is compiled."""

    template = (
        "explain: runs the model on this rank alone, and it calls {operator} outside of what "
        "torch.compile captures; give the parts around it to explain one by one"
    )
