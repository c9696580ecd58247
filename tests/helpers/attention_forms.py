"""Attention as models write it: masks, biases, padding, sinks and decoding, as array programs."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import blockbuster_fusion as bb
from blockbuster_fusion import ops
from blockbuster_fusion.array.arrays import Array
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.ir.types import DType
from helpers.running import sizes_for

LEAST = float(np.finfo(np.float32).min)
NOTHING = float("-inf")
QKV = {"q": "B H S D:16", "k": "B H T D:16", "v": "B H T E:16"}
GROUPED = {"q": "B G R S D:16", "k": "B G T D:16", "v": "B G T E:16"}


@dataclass(frozen=True)
class Form:
    """A way to write attention, and whether positions say which blocks are masked."""

    function: Callable[..., Array]
    specs: dict
    skips: bool = True
    checked: bool = False
    """True if a row may see nothing of its window for a reason that is only known at run time."""

    def traced(self) -> ArrayProgram:
        name = self.function.__name__
        specs = {n: bb.array(s[0], dtype=s[1]) if isinstance(s, tuple) else s
                 for n, s in self.specs.items()}  # fmt: skip
        return bb.trace(self.function, name="form" if name == "<lambda>" else name, **specs)


FORMS: dict[str, Form] = {}


def form(
    specs: dict = QKV, *, skips: bool = True, checked: bool = False, **more: object
) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    def register(function: Callable[..., Array]) -> Callable[..., Array]:
        FORMS[function.__name__] = Form(function, {**specs, **more}, skips, checked)
        return function

    return register


def dots(q: Array, k: Array) -> Array:
    return q @ k.swapaxes(-1, -2)


def places(s: Array) -> tuple[Array, Array]:
    """The position of the key and that of the query."""
    return ops.index(s, -1), ops.index(s, -2)


def attended(s: Array, v: Array) -> Array:
    return ops.softmax(s) @ v


def where_any(s: Array, v: Array) -> Array:
    """PyTorch's safe softmax: 0 where every score of a row is -inf."""
    some = (s != NOTHING).max(-1, keepdims=True)
    return ops.where(some, ops.softmax(s), 0.0) @ v


def of_keys(mask: Array, rank: int = 4) -> Array:
    """A mask (B T) beside scores (B … S T)."""
    return mask[(slice(None), *[None] * (rank - 2), slice(None))]


# ------------------------------------------------------------------- causal, by positions


@form()
def added_mask(q: Array, k: Array, v: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return attended(s + ops.where(t <= r, 0.0, LEAST), v)


@form()
def offset_of_sizes(q: Array, k: Array, v: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    past = ops.size(s, -1) - ops.size(s, -2)
    return attended(s + ops.where(t <= r + past, 0.0, LEAST), v)


@form(offset=("", "int64"), checked=True)
def offset_that_is_an_input(q: Array, k: Array, v: Array, offset: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return attended(s + ops.where(t <= r + offset, 0.0, LEAST), v)


@form(cache_position=("S", "int64"), checked=True)
def cache_positions(q: Array, k: Array, v: Array, cache_position: Array) -> Array:
    s = dots(q, k) * 0.25
    t, _ = places(s)
    return attended(s + ops.where(t <= cache_position[:, None], 0.0, LEAST), v)


@form(cache_position=("S", "int64"))
def cache_positions_safe(q: Array, k: Array, v: Array, cache_position: Array) -> Array:
    s = dots(q, k) * 0.25
    t, _ = places(s)
    row = cache_position[:, None]
    return where_any(s + ops.where((t <= row) & (t > row - 9), 0.0, NOTHING), v)


@form()
def chosen_nothing(q: Array, k: Array, v: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return attended(ops.where(t <= r, s, NOTHING), v)


@form()
def chosen_least(q: Array, k: Array, v: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return attended(ops.where(t <= r, s, LEAST), v)


@form()
def masked_before_scaling(q: Array, k: Array, v: Array) -> Array:
    s = dots(q, k)
    t, r = places(s)
    return attended(ops.where(t <= r, s, LEAST) * ops.size(q, -1) ** -0.5, v)


@form({"q": "B H S D", "k": "B H T D", "v": "B H T E:16"})
def scaled_by_a_size(q: Array, k: Array, v: Array) -> Array:
    s = dots(q, k)
    t, r = places(s)
    return attended(ops.where(t <= r, s, LEAST) / ops.sqrt(ops.size(q, -1)), v)


@form()
def nothing_before_scaling(q: Array, k: Array, v: Array) -> Array:
    s = dots(q, k)
    t, r = places(s)
    return attended(ops.where(t <= r, s, NOTHING) / 4.0, v)


@form()
def arithmetic_mask(q: Array, k: Array, v: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return attended(s + (1.0 - (t <= r).astype("float32")) * LEAST, v)


# ------------------------------------------------------------------- windows and padding


@form(padding=("B T", "bool"), checked=True)
def window_and_padding(q: Array, k: Array, v: Array, padding: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    mask = (t <= r) & (t > r - 9) & of_keys(padding)
    return attended(ops.where(mask, s, LEAST), v)


@form(padding=("B T", "int64"))
def window_and_whole_numbers(q: Array, k: Array, v: Array, padding: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    mask = (t <= r) & ((t > r - 9) & (of_keys(padding) != 0))
    return attended(ops.where(mask, s, NOTHING), v)


@form(padding=("B T", "int64"), checked=True)
def mask_inside_where(q: Array, k: Array, v: Array, padding: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    mask = ops.where(t <= r, of_keys(padding) != 0, False)
    return attended(s + ops.where(mask, 0.0, LEAST), v)


@form(padding=("B T", "bool"), checked=True)
def neither_later_nor_padded(q: Array, k: Array, v: Array, padding: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    mask = ops.logical_not((t > r) | ops.logical_not(of_keys(padding)))
    return attended(ops.where(mask, s, LEAST), v)


@form(padding=("B T", "bool"), checked=True)
def filled_twice(q: Array, k: Array, v: Array, padding: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    s = ops.where(t > r, LEAST, s)
    return attended(ops.where(of_keys(padding), s, LEAST), v)


@form(padding=("B T", "bool"), checked=True)
def added_twice(q: Array, k: Array, v: Array, padding: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    s = s + ops.where(t <= r, 0.0, LEAST)
    return attended(s + ops.where(of_keys(padding), 0.0, LEAST), v)


@form(cache_position=("S", "int64"), padding=("B T", "bool"), checked=True)
def all_three(q: Array, k: Array, v: Array, cache_position: Array, padding: Array) -> Array:
    s = dots(q, k) * 0.25
    t, _ = places(s)
    row = cache_position[:, None]
    mask = (t <= row) & (t > row - 9) & of_keys(padding)
    return attended(ops.where(mask, s, LEAST), v)


@form(prefix=("", "int64"), checked=True)
def prefix_of_all(q: Array, k: Array, v: Array, prefix: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return attended(ops.where((t <= r) | (t < prefix), s, LEAST), v)


@form(prefix=("B", "int64"))
def prefix_of_each(q: Array, k: Array, v: Array, prefix: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    mask = (t <= r) | (t < prefix[:, None, None, None])
    return attended(ops.where(mask, s, NOTHING), v)


@form(lengths=("B", "int64"), checked=True)
def lengths_of_each(q: Array, k: Array, v: Array, lengths: Array) -> Array:
    s = dots(q, k) * 0.25
    t, _ = places(s)
    return attended(ops.where(t < lengths[:, None, None, None], s, LEAST), v)


@form(checked=True)
def chunks(q: Array, k: Array, v: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return attended(ops.where((t <= r) & (t // 16 == r // 16), s, LEAST), v)


@form(image=("B T", "bool"), skips=False)
def later_if_an_image(q: Array, k: Array, v: Array, image: Array) -> Array:
    """Data unmask keys that positions would mask."""
    s = dots(q, k) * 0.25
    t, r = places(s)
    return attended(ops.where((t <= r) | of_keys(image), s, LEAST), v)


# ------------------------------------------------------------------- biases and caps


@form(slope="H")
def alibi(q: Array, k: Array, v: Array, slope: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return attended(ops.where(t <= r, s + slope[:, None, None] * (t - r), NOTHING), v)


@form(slope="H")
def alibi_of_keys(q: Array, k: Array, v: Array, slope: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return attended(s + slope[:, None, None] * t + ops.where(t <= r, 0.0, LEAST), v)


@form(bias="H S T", skips=False)
def bias_of_heads(q: Array, k: Array, v: Array, bias: Array) -> Array:
    return attended(dots(q, k) * 0.25 + bias, v)


@form(bias="B S T", checked=True)
def bias_and_mask(q: Array, k: Array, v: Array, bias: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return attended(ops.where(t <= r, s + bias[:, None], LEAST), v)


@form()
def softcap(q: Array, k: Array, v: Array) -> Array:
    s = ops.tanh(dots(q, k) * 0.25 / 30.0) * 30.0
    t, r = places(s)
    return attended(s + ops.where(t <= r, 0.0, LEAST), v)


# ------------------------------------------------------------------- safe softmax


@form()
def rows_without_keys(q: Array, k: Array, v: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return where_any(ops.where(t <= r - 3, s, NOTHING), v)


@form()
def rows_all_masked(q: Array, k: Array, v: Array) -> Array:
    """The same by "all", with 0 first."""
    s = dots(q, k) * 0.25
    t, r = places(s)
    s = ops.where((t <= r - 3) & (t >= r - 9), s, NOTHING)
    none = (s == NOTHING).min(-1, keepdims=True)
    return ops.where(none, 0.0, ops.softmax(s)) @ v


@form(padding=("B T", "bool"))
def safe_with_padding(q: Array, k: Array, v: Array, padding: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return where_any(ops.where((t <= r) & of_keys(padding), s, NOTHING), v)


@form(mask=("B S T", "bool"), skips=False)
def safe_with_any_mask(q: Array, k: Array, v: Array, mask: Array) -> Array:
    return where_any(dots(q, k) * 0.25 + ops.where(mask[:, None], 0.0, NOTHING), v)


@form()
def root_of_the_scale_on_both(q: Array, k: Array, v: Array) -> Array:
    s = dots(q * 0.5, k * 0.5)
    t, r = places(s)
    return where_any(s + ops.where(t <= r, 0.0, NOTHING), v)


# ------------------------------------------------------------------- written out, groups, sinks


def written_out(s: Array, v: Array) -> Array:
    e = ops.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ v


@form()
def softmax_written_out(q: Array, k: Array, v: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    return written_out(s + ops.where(t <= r, 0.0, LEAST), v)


@form(GROUPED)
def groups_of_heads(q: Array, k: Array, v: Array) -> Array:
    s = dots(q, k[:, :, None]) * 0.25
    t, r = places(s)
    return written_out(s + ops.where(t <= r, 0.0, LEAST), v[:, :, None])


@form(GROUPED, padding=("B T", "bool"))
def groups_safe_with_padding(q: Array, k: Array, v: Array, padding: Array) -> Array:
    s = dots(q, k[:, :, None]) * 0.25
    t, r = places(s)
    mask = (t <= r) & of_keys(padding, 5)
    return where_any(s + ops.where(mask, 0.0, NOTHING), v[:, :, None])


@form(sink="H")
def sink(q: Array, k: Array, v: Array, sink: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    e = ops.exp(s + ops.where((t <= r) & (t > r - 9), 0.0, LEAST))
    return (e / (e.sum(-1, keepdims=True) + ops.exp(sink[:, None, None]))) @ v


@form(sink="H")
def sink_written_out(q: Array, k: Array, v: Array, sink: Array) -> Array:
    s = dots(q, k) * 0.25
    t, r = places(s)
    s, z = s + ops.where((t <= r) & (t > r - 9), 0.0, LEAST), sink[:, None, None]
    for _ in range(2):  # the model takes the maximum off, and its softmax does it again
        top = ops.maximum(s.max(-1, keepdims=True), z)
        s, z = s - top, z - top
    e = ops.exp(s)
    return (e / (e.sum(-1, keepdims=True) + ops.exp(z))) @ v


# ------------------------------------------------------------------- one query


@form({"q": "B H D:16", "k": "B H T D:16", "v": "B H T E:16"}, skips=False)
def query_without_an_axis(q: Array, k: Array, v: Array) -> Array:
    return attended(dots(q[:, :, None], k) * 0.25, v)


@form({"q": "B H D:16", "k": "B H T D:16", "v": "B H T E:16"}, length=("", "int64"), checked=True)
def query_and_a_length(q: Array, k: Array, v: Array, length: Array) -> Array:
    s = dots(q[:, :, None], k) * 0.25
    return attended(s + ops.where(ops.index(s, -1) <= length, 0.0, LEAST), v)


@form(
    {**GROUPED, "q": "B G R S:1 D:16"},
    cache_position=("S:1", "int64"),
    padding=("B T", "bool"),
    checked=True,
)
def one_query(q: Array, k: Array, v: Array, cache_position: Array, padding: Array) -> Array:
    s = dots(q, k[:, :, None]) * 0.25
    mask = (ops.index(s, -1) <= cache_position[:, None]) & of_keys(padding, 5)
    return written_out(s + ops.where(mask, 0.0, LEAST), v[:, :, None])


@form({**QKV, "q": "B H S:1 D:16"}, cache_position=("S:1", "int64"))
def one_query_safe(q: Array, k: Array, v: Array, cache_position: Array) -> Array:
    s = dots(q, k) * 0.25
    return where_any(s + ops.where(ops.index(s, -1) <= cache_position[:, None], 0.0, NOTHING), v)


# ------------------------------------------------------------------- inputs


def inputs_of(program: ArrayProgram, seed: int = 0, **extents: int) -> dict[str, np.ndarray]:
    """Random float64 numbers; masks that leave some rows nothing, positions before and after."""
    sizes = sizes_for(program, {"B": 2, "H": 3, "G": 2, "R": 2, **extents})
    rng = np.random.default_rng(seed)
    made = {}
    for given in program.inputs:
        shape = [sizes[axis.name] for axis in given.type.axes]
        made[given.name] = np.asarray(_input(given.name, shape, sizes["T"], rng))
        if given.type.dtype is DType.int64:
            made[given.name] = made[given.name].astype(np.int64)
    return made


def _input(name: str, shape: list[int], keys: int, rng: np.random.Generator) -> object:
    match name:
        case "padding":
            x = np.ones(shape, bool)
            x[0, : min(7, keys - 1)] = x[1, max(1, keys - 5) :] = False
            return x
        case "image":
            return rng.random(shape) < 0.2
        case "mask":
            x = rng.random(shape) < 0.5
            x[0, 0] = False
            return x
        case "cache_position":
            return np.arange(shape[0]) + max(0, keys - shape[0]) - 2
        case "offset" | "length":
            return 4
        case "prefix" | "lengths":
            return np.arange(3, 3 + shape[0]) * 2 if shape else 7
        case "slope":
            return 2.0 ** -np.arange(1, shape[0] + 1)
    return rng.standard_normal(shape)
