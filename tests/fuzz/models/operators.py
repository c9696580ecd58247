"""Generators of random lines: for every row of the operator table, and for other operations.

A row without a recipe of its own is tried by its schema: arguments are drawn by their types, and
PyTorch says whether they fit. So a new row is fuzzed as soon as it is in the table.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import blockbuster_fusion.torch.table as rows
from blockbuster_fusion.select.operators import Kind as RowKind
from blockbuster_fusion.torch.table.row import TABLE
from fuzz.models.maker import FLOATS, WHOLE, Maker, NoOperand
from fuzz.models.program import Kind, Role

Recipe = Callable[[Maker], None]
RECIPES: dict[str, list[Recipe]] = {}
"""Recipes by the row that they are for."""
EXTRA: dict[str, Recipe] = {}
"""Recipes for operations that are not in the table."""


def recipe(*names: str) -> Callable[[Recipe], Recipe]:
    """Registers a recipe for rows of the table."""

    def register(made: Recipe) -> Recipe:
        for name in names:
            full = name if "." in name else f"aten.{name}"
            RECIPES.setdefault(full, []).append(made)
        return made

    return register


def extra(made: Recipe) -> Recipe:
    """Registers a recipe that belongs to no row of the table."""
    EXTRA[made.__name__] = made
    return made


UNDEFINED = ("aten.empty",)
"""Rows whose results have no values: recipes write to them before anybody reads."""


def add_line(m: Maker, row: str) -> bool:
    """Adds a line for a row of the table, or for something beside it; False where none fits."""
    made: list[Recipe] = [EXTRA[row]] if row in EXTRA else RECIPES.get(row, [])
    for _ in range(6):
        chosen = m.random.choice(made) if made and m.random.random() < 0.85 else None
        try:
            if chosen is not None:
                chosen(m)
            elif row in TABLE and row not in UNDEFINED:
                by_schema(m, row)
            else:
                continue
        except NoOperand:
            continue
        return True
    return False


# ---------------------------------------------------------------- by schema


def overloads(row: str) -> list[Any]:
    """The operators that a row of the table stands for."""
    space, name, *given = row.split(".")
    packet = getattr(getattr(torch.ops, space), name)
    names = given or [n for n in packet.overloads() if n in rows.OVERLOADS]
    made = [getattr(packet, n) for n in names]
    return [f for f in made if any("Tensor" in str(a.type) for a in f._schema.returns)]


PLACES = ("memory_format", "layout", "device", "pin_memory", "non_blocking")
"""Arguments that set the place of a result, not its values."""


def by_schema(m: Maker, row: str) -> None:
    """A line that calls an operator with arguments drawn by their types."""
    function = m.random.choice(overloads(row))
    first: str | None = None
    given: list[str] = []
    for argument in function._schema.arguments:
        is_left_out = argument.name in PLACES or m.random.random() < 0.6
        if argument.has_default_value() and is_left_out:
            if argument.kwarg_only:
                continue
            text = repr(argument.default_value)
        else:
            text = drawn(m, argument, first)
        if argument.name == "alpha" and TABLE[row].kind is RowKind.CONTRACTION:
            text = text if float(text) else "1"  # 0 · NaN depends on sizes and dtype in eager mode
        if first is None and text in m.now:
            first = text
        given.append(f"{argument.name}={text}" if argument.kwarg_only else text)
    kind = Kind.VIEW if TABLE[row].kind is RowKind.VIEW else Kind.COMPUTE
    results = len(function._schema.returns)
    several = results if results > 1 else 0
    m.add(f"torch.ops.{function}({', '.join(given)})", row, kind, several)


def drawn(m: Maker, argument: Any, first: str | None) -> str:
    """The text of an argument; `first` is the first tensor among those before it."""
    r, kind, name = m.random, str(argument.type), argument.name
    if name == "dtype":
        return str(r.choice((*FLOATS, *WHOLE, torch.bool)))
    if name in ("dim", "dim0", "dim1", "dim2") and first is not None:
        return str(m.dims(first)) if kind.startswith("List") else str(m.dim(first))
    match kind.removeprefix("Optional[").removesuffix("]"):
        case "Tensor" if name in ("index", "indices"):
            return m.pick(lambda t: t.dtype in WHOLE)
        case "Tensor" if name in ("mask", "condition"):
            return m.beside(first, torch.bool) if first else m.pick(lambda t: t.dtype is torch.bool)
        case "Tensor":
            return m.beside(first) if first else m.pick()
        case "List[Tensor":
            return f"[{m.pick()}, {m.pick()}]"
        case "number" | "float":
            return repr(m.number())
        case "bool":
            return str(r.random() < 0.5)
        case "int" | "SymInt":
            return str(r.choice((0, 1, 2, -1)))
        case "List[int" | "List[SymInt":
            return str([r.choice((1, 2, 3)) for _ in range(r.randint(0, 3))])
    return "None"


# ---------------------------------------------------------------- elementwise

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "floor_divide": "//", "remainder": "%", "pow": "**",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^",
}  # fmt: skip


def _infix(name: str, sign: str) -> Recipe:
    def made(m: Maker) -> None:
        is_bits = name.startswith("bitwise")
        x = m.pick(lambda t: t.dtype is torch.bool) if is_bits else m.pick()
        choice = m.random.random()
        other = m.beside(x, torch.bool if is_bits else None) if choice < 0.6 else repr(m.number())
        if is_bits and other not in m.now:
            other = "True"
        pair = (x, other) if choice < 0.8 else (other, x)
        m.add(f"{pair[0]} {sign} {pair[1]}", f"aten.{name}")

    return made


for _name, _sign in INFIX.items():
    recipe(_name)(_infix(_name, _sign))


def _takes_one_tensor(row: str) -> bool:
    needed = [a for a in overloads(row)[0]._schema.arguments if not a.has_default_value()]
    return [str(a.type) for a in needed] == ["Tensor"]


def _unary(row: str) -> Recipe:
    def made(m: Maker) -> None:
        x = m.pick() if m.random.random() < 0.2 else m.floating()
        m.add(f"torch.ops.{row}({x})", row)

    return made


for _row in [*TABLE]:
    if TABLE[_row].kind is RowKind.POINTWISE and _takes_one_tensor(_row):
        recipe(_row)(_unary(_row))


@recipe("sqrt", "log", "rsqrt", "pow", "reciprocal")
def _of_positive(m: Maker) -> None:
    """Functions that have no value of negative numbers, of others."""
    x = m.floating()
    name = m.random.choice(("sqrt", "log", "rsqrt", "reciprocal"))
    m.add(f"torch.{name}({x}.abs() + 0.5)", f"aten.{name}")


@recipe("div", "floor_divide")
def _div_mode(m: Maker) -> None:
    x = m.pick()
    y = m.beside(x) if m.random.random() < 0.5 else repr(m.number())
    mode = m.random.choice(("floor", "trunc", None))
    m.add(f"torch.div({x}, {y}, rounding_mode={mode!r})", "aten.div")


@recipe("add", "sub")
def _scaled(m: Maker) -> None:
    x = m.pick()
    name = m.random.choice(("add", "sub"))
    m.add(f"torch.{name}({x}, {m.beside(x)}, alpha={m.number()!r})", f"aten.{name}")


@recipe("gelu")
def _gelu(m: Maker) -> None:
    how = m.random.choice(("none", "tanh"))
    m.add(f"F.gelu({m.floating()}, approximate={how!r})", "aten.gelu")


@recipe("relu6", "elu", "softplus", "leaky_relu", "silu", "hardtanh")
def _activation(m: Maker) -> None:
    name = m.random.choice(("relu6", "elu", "softplus", "leaky_relu", "silu", "hardtanh", "mish",
                            "celu", "selu", "logsigmoid", "tanhshrink", "softsign"))  # fmt: skip
    m.add(f"F.{name}({m.floating()})", f"aten.{name}")


@recipe("clamp", "clamp_min", "clamp_max")
def _clamp(m: Maker) -> None:
    x, low, high = m.pick(), m.number(), m.number()
    texts = (
        f"{x}.clamp({low}, {high})",
        f"{x}.clamp(min={low})",
        f"{x}.clamp(max={high})",
        f"torch.clamp({x}, min={m.beside(x)})",
    )
    m.add(m.random.choice(texts), "aten.clamp")


@recipe("where", "masked_fill")
def _where(m: Maker) -> None:
    x = m.pick()
    mask = m.beside(x, torch.bool)
    fill = m.random.choice(("-torch.inf", "0.0", "-1e30", "float('nan')", repr(m.number())))
    if not m.now[x].is_floating_point():
        fill = m.random.choice(("0", "3"))
    texts = (
        f"torch.where({mask}, {x}, {m.beside(x)})",
        f"torch.where({mask}, {x}, {fill})",
        f"{x}.masked_fill({mask}, {fill})",
    )
    m.add(m.random.choice(texts), "aten.where")


@recipe("_to_copy", "to.dtype", "prims.convert_element_type")
def _to(m: Maker) -> None:
    x = m.pick()
    dtype = m.random.choice((*FLOATS, *FLOATS, *WHOLE, torch.bool))
    m.add(f"{x}.to({dtype})", "aten._to_copy")


# ---------------------------------------------------------------- generators


def _shape_text(m: Maker, name: str) -> str:
    return "".join(f"{m.extent(name, i)}, " for i in range(m.now[name].dim()))


@recipe("full", "zeros", "ones", "scalar_tensor", "full_like", "zeros_like", "ones_like")
def _made(m: Maker) -> None:
    x = m.pick()
    shape = f"({_shape_text(m, x)})"
    dtype = m.random.choice((f", dtype={m.dtype()}", ""))
    value = m.number()
    texts = {
        f"torch.full({shape}, {value}{dtype})": "aten.full",
        f"torch.zeros({shape}{dtype})": "aten.zeros",
        f"torch.ones({shape}{dtype})": "aten.ones",
        f"torch.full_like({x}, {value}{dtype})": "aten.full_like",
        f"torch.zeros_like({x}{dtype})": "aten.zeros_like",
        f"torch.ones_like({x}{dtype})": "aten.ones_like",
        f"torch.scalar_tensor({value}{dtype})": "aten.scalar_tensor",
        f"torch.tensor({value}{dtype})": "aten.scalar_tensor",
    }
    text = m.random.choice([*texts])
    m.add(text, texts[text])


@recipe("empty")
def _empty(m: Maker) -> None:
    """Memory that is written before it is read."""
    x = m.pick()
    m.add(f"torch.empty_like({x}).copy_({x})", "aten.empty")


@recipe("arange")
def _arange(m: Maker) -> None:
    x = m.pick(lambda t: t.dim() > 0)
    end = m.extent(x, m.dim(x) % m.now[x].dim())
    texts = (
        f"torch.arange({end})",
        f"torch.arange({end}, dtype={m.dtype()})",
        f"torch.arange(2, 2 + {end})",
        f"torch.arange(0, 3 * {end}, 3)",
        f"torch.arange(0, 0.5 * {end}, 0.5)",
    )
    m.add(m.random.choice(texts), "aten.arange")


# ---------------------------------------------------------------- products


def _rank(*ranks: int) -> Callable[[Tensor], bool]:
    return lambda t: t.dim() in ranks


@recipe("mm", "bmm", "matmul", "mv", "dot")
def _matmul(m: Maker) -> None:
    x = m.floating(_rank(1, 2, 3, 4))
    dtype, sizes = m.now[x].dtype, m.sizes(x)
    columns = m.random.choice((1, 2, 4, 5))
    choice = m.random.random()
    if choice < 0.3:
        y = m.floating(lambda t: t.dim() > 1 and t.dtype is dtype)
        y = m.random.choice((y, f"{y}.transpose(-1, -2)"))
    elif choice < 0.6 and len(sizes) > 2:
        y = m.add_given([*sizes[:-2], sizes[-1], columns], dtype)
    elif choice < 0.85:
        y = m.add_given([sizes[-1], columns], dtype, role=Role.PARAMETER)
    else:
        y = m.add_given([sizes[-1]], dtype)
    m.add(f"{x} @ {y}", "aten.mm")


@recipe("bmm", "matmul")
def _square(m: Maker) -> None:
    x = m.floating(_rank(2, 3, 4))
    m.add(m.random.choice((f"{x} @ {x}.mT", f"{x}.mT @ {x}")), "aten.bmm")


@recipe("addmm", "linear")
def _linear(m: Maker) -> None:
    x = m.floating(_rank(1, 2, 3))
    dtype, width = m.now[x].dtype, m.sizes(x)[-1]
    out = m.random.choice((1, 3, 4, 8))
    weight = m.add_given([out, width], dtype, role=Role.PARAMETER)
    bias = m.add_given([out], dtype, role=Role.PARAMETER) if m.random.random() < 0.6 else "None"
    m.add(f"F.linear({x}, {weight}, {bias})", "aten.addmm")


@recipe("addmm", "baddbmm")
def _added_product(m: Maker) -> None:
    x = m.floating(_rank(2, 3))
    dtype, sizes = m.now[x].dtype, m.sizes(x)
    y = m.add_given([*sizes[:-2], sizes[-1], 3], dtype)
    bias = m.add_given([*sizes[:-1], 3][m.random.randrange(len(sizes)) :], dtype)
    name = "addmm" if len(sizes) == 2 else "baddbmm"
    # with alpha 0, whether NaN goes through depends on sizes and dtype in eager mode
    scales = f", beta={m.number()}, alpha={m.number() or 1}" if m.random.random() < 0.5 else ""
    m.add(f"torch.{name}({bias}, {x}, {y}{scales})", f"aten.{name}")


@recipe("dot", "mv")
def _vectors(m: Maker) -> None:
    y = m.floating(_rank(1))
    x = m.add_given([m.random.choice((1, 3)), *m.sizes(y)], m.now[y].dtype)
    m.add(m.random.choice((f"torch.mv({x}, {y})", f"torch.dot({y}, {x}[0])")), "aten.mv")


@recipe("convolution")
def _convolution(m: Maker) -> None:
    r, dtype = m.random, m.floats
    places = r.choice((1, 2))
    window = [r.choice((1, 2, 3)) for _ in range(places)]
    x = m.add_given([r.choice((1, 2)), r.choice((1, 3)), *(2 * w for w in window)], dtype)
    channels = m.sizes(x)[1]
    weight = m.add_given([r.choice((1, 4)), channels, *window], dtype, role=Role.PARAMETER)
    stride = tuple(window) if r.random() < 0.7 else (1,) * places
    bias = m.add_given(m.sizes(weight)[:1], dtype) if r.random() < 0.5 else "None"
    m.add(f"F.conv{places}d({x}, {weight}, {bias}, stride={stride})", "aten.convolution")


@extra
def einsum(m: Maker) -> None:
    x = m.floating(_rank(2, 3))
    rank = m.now[x].dim()
    y = m.add_given([m.sizes(x)[-1], 3], m.now[x].dtype)
    letters = "abc"[:rank]
    m.add(f"torch.einsum('{letters},{letters[-1]}z->{letters[:-1]}z', {x}, {y})", "einsum")


@extra
def attention(m: Maker) -> None:
    r = m.random
    # attention of nothing ends the process in eager mode: PyTorch 2.11 divides by its length
    q = m.floating(_rank(3, 4), lambda t: bool(t.numel() and t.isfinite().all()))
    sizes, dtype = m.sizes(q), m.now[q].dtype
    keys = r.choice((1, 2, 5, 8))
    # keys and values that a mask leaves out are not read, so NaN in them may go unseen
    k = m.add_given([*sizes[:-2], keys, sizes[-1]], dtype, odd=False)
    v = m.add_given([*sizes[:-2], keys, r.choice((2, 4))], dtype, odd=False)
    mask = m.add_given([sizes[-2], keys], torch.bool) if r.random() < 0.4 else "None"
    causal = r.random() < 0.3 and mask == "None"
    if r.random() < 0.5:
        m.add(f"F.scaled_dot_product_attention({q}, {k}, {v}, {mask}, 0.0, {causal})", "attention")
        return
    m.add(f"{q} @ {k}.mT * 0.5", "attention")
    if mask != "None":
        m.add(f"v{m.count - 1}.masked_fill({mask}, -torch.inf)", "attention")
    m.add(f"v{m.count - 1}.softmax(-1) @ {v}", "attention")


# ---------------------------------------------------------------- reductions


def _reduced(name: str) -> Recipe:
    def made(m: Maker) -> None:
        x = m.pick() if m.random.random() < 0.2 else m.floating()
        where = m.random.choice((str(m.dim(x)), str(m.dims(x)), ""))
        if name == "prod" and "[" in where:
            where = ""
        keep = f", keepdim={m.random.random() < 0.5}" if where else ""
        m.add(f"torch.{name}({x}{', ' if where else ''}{where}{keep})", f"aten.{name}")

    return made


for _name in ("sum", "prod", "amax", "amin", "any", "all", "mean"):
    recipe(_name)(_reduced(_name))


@recipe("var.correction", "var_mean.correction", "var.dim", "var_mean.dim")
def _variance(m: Maker) -> None:
    x = m.floating()
    name = m.random.choice(("var", "var_mean", "std"))
    where = m.random.choice((str(m.dim(x)), str(m.dims(x)), "None"))
    correction = m.random.choice((0, 1, 1, 2))
    text = f"torch.{name}({x}, {where}, correction={correction}, keepdim={m.random.random() < 0.5})"
    m.add(text, f"aten.{name}.correction", None, 2 if name == "var_mean" else 0)


@recipe("_softmax", "softmax", "_log_softmax", "log_softmax")
def _softmax(m: Maker) -> None:
    x = m.floating(_rank(1, 2, 3, 4))
    name = m.random.choice(("softmax", "log_softmax", "logsumexp"))
    m.add(f"torch.{name}({x}, {m.dim(x)})", f"aten._{name}")


@recipe("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
def _scanned(m: Maker) -> None:
    x = m.floating(_rank(1, 2, 3, 4))
    name = m.random.choice(("cumsum", "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"))
    values = ".values" if name in ("cummax", "cummin") else ""
    m.add(f"torch.{name}({x}, {m.dim(x)}){values}", f"aten.{name}")


@recipe("native_layer_norm", "layer_norm", "rms_norm")
def _norm(m: Maker) -> None:
    r = m.random
    x = m.floating(_rank(1, 2, 3, 4))
    name = r.choice(("layer_norm", "rms_norm"))
    count = r.choice((1, 1, 1, 2))
    sizes = m.sizes(x)[-count:]
    rank = m.now[x].dim()
    shape = "".join(f"{m.extent(x, i)}, " for i in range(max(rank - count, 0), rank))
    dtype, has_weight = m.now[x].dtype, r.random() < 0.6
    weight = m.add_given(sizes, dtype, role=Role.PARAMETER) if has_weight else "None"
    bias = ""
    if name == "layer_norm" and has_weight and r.random() < 0.7:
        bias = f", {m.add_given(sizes, dtype, role=Role.PARAMETER)}"
    m.add(f"F.{name}({x}, ({shape}), {weight}{bias})", f"aten.{name}")


@recipe("native_group_norm", "_native_batch_norm_legit_no_training")
def _norm_of_channels(m: Maker) -> None:
    r = m.random
    x = m.floating(_rank(2, 3, 4))
    channels, dtype = m.sizes(x)[1], m.now[x].dtype
    if not isinstance(channels, int) or not channels:
        raise NoOperand
    weight, bias, mean, spread = (
        m.add_given([channels], dtype, role=Role.PARAMETER) for _ in range(4)
    )
    parameters = f"{weight}, {bias}" if r.random() < 0.6 else "None, None"
    if r.random() < 0.5:
        groups = r.choice([n for n in range(1, channels + 1) if channels % n == 0])
        m.add(f"F.group_norm({x}, {groups}, {parameters})", "aten.native_group_norm")
        return
    text = f"F.batch_norm({x}, {mean}, {spread}.abs() + 0.5, {parameters})"
    m.add(text, "aten._native_batch_norm_legit_no_training")


@extra
def normalised(m: Maker) -> None:
    """A norm as people write it out."""
    x = m.floating(_rank(1, 2, 3))
    texts = (
        f"{x} / {x}.norm(dim=-1, keepdim=True)",
        f"({x} - {x}.mean(-1, keepdim=True)) / ({x}.var(-1, keepdim=True) + 1e-5).sqrt()",
        f"{x} * ({x}.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()",
        f"{x}.exp() / {x}.exp().sum(-1, keepdim=True)",
        f"F.normalize({x}, dim=-1)",
    )
    m.add(m.random.choice(texts), "normalised")


@recipe("binary_cross_entropy", "smooth_l1_loss", "huber_loss", "mse_loss")
def _loss_of_elements(m: Maker) -> None:
    x, kind = m.floating(), m.random.choice(("none", "mean", "sum"))
    name = m.random.choice(("binary_cross_entropy", "smooth_l1_loss", "huber_loss", "mse_loss"))
    y = f"({x} * 2 - 1)"
    if name == "binary_cross_entropy":  # of probabilities alone
        x, y = (f"{t}.nan_to_num(0.5).sigmoid()" for t in (x, y))
    m.add(f"F.{name}({x}, {y}, reduction='{kind}')", f"aten.{name}")


@recipe("nll_loss_forward")
def _loss_of_classes(m: Maker) -> None:
    x, kind = m.floating(_rank(2)), m.random.choice(("none", "mean", "sum"))
    rows_, classes = m.sizes(x)
    if not isinstance(classes, int) or not classes:
        raise NoOperand
    target = m.add_given([rows_], torch.int64, most=classes, plain=True)
    m.add(f"F.nll_loss({x}, {target}, reduction='{kind}')", "aten.nll_loss_forward")


@extra
def loss(m: Maker) -> None:
    x = m.floating(_rank(2))
    rows_, classes = m.sizes(x)
    if not isinstance(classes, int) or not classes:
        raise NoOperand
    target = m.add_given([rows_], torch.int64, most=classes, plain=True)
    y = m.beside(x, m.now[x].dtype)
    texts = (
        f"F.cross_entropy({x}, {target})",
        f"F.cross_entropy({x}, {target}, reduction='none')",
        f"F.mse_loss({x}, {y})",
        f"F.nll_loss(F.log_softmax({x}, -1), {target})",
    )
    m.add(m.random.choice(texts), "loss")


# ---------------------------------------------------------------- views


@recipe("view", "_unsafe_view", "reshape")
def _view(m: Maker) -> None:
    r, x = m.random, m.pick(lambda t: t.dim() > 0)
    rank = m.now[x].dim()
    texts = [f"{x}.flatten()", f"{x}.reshape(-1)", f"{x}.unsqueeze(0).flatten(0, 1)"]
    at = r.randrange(rank)
    before = [m.extent(x, i) for i in range(at)]
    after = [m.extent(x, i) for i in range(at + 1, rank)]
    size = m.extent(x, at)
    if size.isdigit():
        for factor in (2, 3, 4):
            if int(size) and int(size) % factor == 0:
                parts = [str(int(size) // factor), str(factor)]
                texts += [f"{x}.reshape({', '.join([*before, *p, *after])})" for p in
                          (parts, parts[::-1])] * 3  # fmt: skip
                texts += [f"{x}.unflatten({at}, ({', '.join(parts)}))"]
    if at:
        merged = [*before[:-1], f"{before[-1]} * {size}", *after]
        texts += [f"{x}.reshape({', '.join(merged)})", f"{x}.view({', '.join(merged)})"]
        texts += [f"{x}.flatten({at - 1}, {at})"]
    m.add(r.choice(texts), "aten.view", Kind.VIEW)


@recipe("permute", "transpose", "t")
def _turned(m: Maker) -> None:
    x = m.pick(lambda t: t.dim() > 1)
    order = [*range(m.now[x].dim())]
    m.random.shuffle(order)
    texts = [
        f"{x}.permute({', '.join(map(str, order))})",
        f"{x}.transpose({m.dim(x)}, {m.dim(x)})",
        f"{x}.mT",
    ]
    if m.now[x].dim() == 2:
        texts.append(f"{x}.t()")
    m.add(m.random.choice(texts), "aten.permute", Kind.VIEW)


@recipe("unsqueeze", "squeeze", "expand", "repeat")
def _ones(m: Maker) -> None:
    r, x = m.random, m.pick()
    rank = m.now[x].dim()
    wide = [m.extent(x, i) for i in range(rank)]
    at = r.randrange(rank + 1)
    texts = [
        f"{x}.unsqueeze({at})",
        f"{x}.unsqueeze({at}).expand({', '.join([*wide[:at], '3', *wide[at:]])})",
        f"{x}.expand({', '.join(['2', *wide])})",
        f"{x}.repeat({', '.join(['2', *['1'] * rank])})",
        f"{x}.squeeze()",
    ]
    if rank:
        d = m.dim(x)
        texts += [f"{x}.squeeze({d})", f"{x}.squeeze({d})", f"{x}[None]", f"{x}[..., None]"]
        texts += [f"{x}.repeat({', '.join(str(r.choice((1, 2))) for _ in range(rank))})"]
        texts += [f"{x}.repeat_interleave(2, {d})"]
    if 1 in m.now[x].shape:
        widened = ", ".join("4" if s == "1" else s for s in wide)
        texts += [f"{x}.expand({widened})"] * 3
    m.add(r.choice(texts), "aten.unsqueeze", Kind.VIEW)


@recipe("slice", "select", "narrow")
def _sliced(m: Maker) -> None:
    r, x = m.random, m.pick(lambda t: t.dim() > 0)
    rank = m.now[x].dim()
    words = []
    for _ in range(r.randint(1, rank)):
        words.append(r.choice((":", "1:", ":1", ":-1", "-1:", "::2", "1::2", ":2", "1:3", "2:",
                               "0", "-1", "0:0", "::3", "-2:", ":0", "1:-1", "None")))  # fmt: skip
    head = "..., " if r.random() < 0.3 else ""
    texts = [f"{x}[{head}{', '.join(words)}]"] * 3
    d = m.dim(x)
    texts += [f"{x}.narrow({d}, 0, {r.choice((0, 1, 2))})", f"{x}.select({d}, {r.choice((0, -1))})"]
    m.add(r.choice(texts), "aten.slice", Kind.VIEW)


@recipe("split", "split_with_sizes", "unbind")
def _split(m: Maker) -> None:
    r, x = m.random, m.pick(lambda t: t.dim() > 0)
    d = m.dim(x)
    size = m.now[x].shape[d]
    if not size or size > 6 or not m.extent(x, d % m.now[x].dim()).isdigit():
        raise NoOperand
    first = r.randint(0, size)
    half = -(-size // 2)
    texts = {
        f"{x}.split([{first}, {size - first}], {d})": 2,
        f"{x}.unbind({d})": size,
        f"{x}.chunk(2, {d})": -(-size // half),
        f"{x}.split(2, {d})": half,
        f"torch.tensor_split({x}, 2, {d})": 2,
    }
    text = r.choice([*texts])
    m.add(text, "aten.split", Kind.VIEW, texts[text])


@recipe("cat")
def _cat(m: Maker) -> None:
    r, x = m.random, m.pick(lambda t: t.dim() > 0)
    d, dtype = m.dim(x), m.now[x].dtype
    parts = [x]
    for _ in range(r.randint(1, 2)):
        choice = r.random()
        found = m.find(lambda t: t.shape == m.now[x].shape)
        if choice < 0.5 and found is not None:
            parts.append(found)
        elif choice < 0.6:
            parts.append(f"torch.zeros_like({x})")
        else:
            sizes = m.sizes(x)
            sizes[d] = r.choice((0, 1, 2, 3))
            parts.append(m.add_given(sizes, dtype if r.random() < 0.9 else m.dtype()))
    r.shuffle(parts)
    texts = [f"torch.cat(({', '.join(parts)}), {d})"] * 3
    texts += [f"torch.stack(({', '.join(parts)}), {d})", f"torch.hstack(({', '.join(parts)}))"]
    m.add(r.choice(texts), "aten.cat")


@recipe("clone", "alias", "detach", "contiguous", "lift_fresh", "lift_fresh_copy")
def _same(m: Maker) -> None:
    x = m.pick()
    name = m.random.choice(("clone", "detach", "contiguous"))
    m.add(f"{x}.{name}()", f"aten.{name}", Kind.VIEW)


@recipe("as_strided", "diagonal")
def _strided(m: Maker) -> None:
    x = m.pick(lambda t: t.dim() > 1)
    texts = (
        f"torch.diagonal({x}, {m.random.choice((0, 1, -1))})",
        f"torch.as_strided({x}, (2, 2), (1, 2))",
        f"torch.tril({x})",
        f"torch.triu({x}, 1)",
    )
    m.add(m.random.choice(texts), "aten.diagonal", Kind.VIEW)


@extra
def rolled(m: Maker) -> None:
    """Views that PyTorch copies."""
    x = m.pick(lambda t: t.dim() > 0)
    d = m.dim(x)
    texts = (
        f"torch.flip({x}, ({d},))",
        f"torch.roll({x}, 1, {d})",
        f"torch.cumsum({x}, {d})",
        f"torch.movedim({x}, {d}, 0)",
        f"torch.sort({x}, {d}).values",
        f"torch.argmax({x}.float(), {d})",
        f"{x}.max({d}).values",
        f"torch.cat(({x}, {x}), {d}).chunk(2, {d})[1]",
    )
    m.add(m.random.choice(texts), "rolled")


@extra
def rotary(m: Maker) -> None:
    """A rotary embedding, which is slices put together again."""
    x = m.floating(lambda t: t.dim() > 1 and t.shape[-1] % 2 == 0 and t.shape[-1] > 0)
    m.add(
        f"torch.cat((-{x}[..., {x}.shape[-1] // 2:], {x}[..., :{x}.shape[-1] // 2]), -1)", "rotary"
    )
    turned = f"v{m.count - 1}"
    cos = m.beside(x, m.now[x].dtype)
    m.add(f"{x} * {cos}.cos() + {turned} * {cos}.sin()", "rotary")


# ---------------------------------------------------------------- lookups


@recipe("embedding", "index_select", "gather", "index")
def _lookup(m: Maker) -> None:
    r = m.random
    x = m.pick(lambda t: t.dim() > 0 and t.shape[0] > 0)
    rank, sizes = m.now[x].dim(), m.sizes(x)
    if isinstance(sizes[0], str):
        raise NoOperand
    places = m.shape(r.choice((1, 1, 2)))
    index = m.add_given(places, r.choice(WHOLE), most=sizes[0])
    texts = [f"{x}[{index}]", f"{x}.index_select(0, {index}.flatten())"]
    if rank == 2:
        texts.append(f"F.embedding({index}, {x})")
    if m.now[index].dim() == 1 and rank > 1:
        texts.append(f"{x}[{index}, :1]")
        texts.append(f"{x}.gather(0, {index}.long()[:, None].expand(-1, {x}.shape[1]))")
        texts.append(f"{x}.transpose(0, 1)[:, {index}]")
    if rank == 1:
        texts.append(f"{x}.take({index}.long())")
    m.add(r.choice(texts), "aten.index")


@recipe("gather")
def _gather(m: Maker) -> None:
    x = m.pick(lambda t: t.dim() > 0)
    d = m.dim(x)
    sizes = m.sizes(x)
    if isinstance(sizes[d], str) or not sizes[d]:
        raise NoOperand
    most = int(sizes[d])
    sizes[d] = m.random.choice((1, 2))
    index = m.add_given(sizes, torch.int64, most=most)
    m.add(f"{x}.gather({d}, {index})", "aten.gather")


@recipe("index")
def _masked(m: Maker) -> None:
    """Numbers that count from the end, and a mask that keeps the shape."""
    x = m.pick(lambda t: t.dim() > 0 and t.shape[0] > 0)
    texts = (f"{x}[torch.tensor([0, -1])]", f"{x}[[0, -1, 0]]", f"{x}[..., torch.tensor([0])]")
    m.add(m.random.choice(texts), "aten.index")


@recipe("constant_pad_nd")
def _pad(m: Maker) -> None:
    x = m.pick(lambda t: t.dim() > 0)
    pads = [
        m.random.choice((0, 1, 2, -1))
        for _ in range(2 * m.random.randint(1, min(2, m.now[x].dim())))
    ]
    m.add(f"F.pad({x}, {pads}, value={m.number()})", "aten.constant_pad_nd")


# ---------------------------------------------------------------- writes


@extra
def write(m: Maker) -> None:
    """Something that is written into a value, or into a part of it."""
    r, x = m.random, m.pick()
    value = m.now[x]
    parts = [x, x]
    if value.dim():
        parts += [f"{x}[:1]", f"{x}[..., 1:]", f"{x}[::2]", f"{x}[..., :-1]", f"{x}.unsqueeze(0)"]
    if value.dim() > 1:
        parts += [f"{x}.mT", f"{x}[:, 0]", f"{x}[0]"]
    part, y, k = r.choice(parts), m.beside(x), m.number()
    texts = [f"{part}.{name}_({k})" for name in ("add", "mul", "fill", "sub", "clamp_min")]
    texts += [f"{part}.zero_()", f"{part}.copy_({k})"]
    texts += [f"{x}.copy_({y})", f"{x}.add_({y})", f"{x}.mul_({y})", f"{x}[...] = {y}"]
    if value.is_floating_point():
        texts += [f"{part}.{name}_()" for name in ("relu", "exp", "sigmoid", "neg", "tanh")]
        texts += [f"{x}.div_(2.0)", f"{x}.masked_fill_({x} > 0, 0.0)"]
    if value.dim():
        texts += [f"{x}[:1] = {k}", f"{x}[..., :1] = {x}[..., -1:] * 2", f"{x}[-1] = {k}"]
        if value.dim() > 1 and value.shape[0] > 1:
            texts += [f"{x}[0].copy_({x}[1])", f"{x}[1:].add_({x}[:-1])"]
        if value.shape[0]:
            texts += [f"{x}.index_put_((torch.tensor([0]),), {x}[:1] + 1)"]
            texts += [f"{x}.index_copy_(0, torch.tensor([0]), {x}[-1:] * 3)"]
            texts += [f"{x}.index_fill_(0, torch.tensor([-1]), {k})"]
            texts += [f"{x}.index_copy_(0, torch.tensor([0]), {y}[-1:])"] * 2
            texts += [f"{x}[torch.tensor([-1])] = {y}[:1] * 2"] * 2
        if value.shape[-1]:
            texts += [f"{x}[..., torch.tensor([0])] = {y}[..., -1:] + 1"] * 2
    m.add(r.choice(texts), "write", Kind.WRITE)


@extra
def bare(m: Maker) -> None:
    """A new input."""
    m.add_given(m.shape(), m.dtype())
