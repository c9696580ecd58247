"""Small Triton functions that printed kernels call; a module has those that it needs."""

HELPERS = {
    "inside": '''
@triton.jit
def inside(at, size, EVEN: tl.constexpr):
    """The tail mask of a block: all True if the blocks divide the axis."""
    if EVEN:
        return tl.full(at.shape, True, tl.int1)
    else:
        return at < size
''',
    "store_halves": '''
@triton.jit
def store_halves(target, block, row, column):
    """Stores a block by a descriptor in two halves, which take half the shared memory."""
    WIDE: tl.constexpr = block.shape[1] // 2
    halves = tl.permute(tl.reshape(block, [block.shape[0], 2, WIDE]), (0, 2, 1))
    left, right = tl.split(halves)
    target.store([row, column], left.to(target.dtype))
    target.store([row, column + WIDE], right.to(target.dtype))
''',
    "both_blocks": '''
@triton.jit
def both_blocks(source, row, column):
    """The blocks of two matrices, one below the other, by one descriptor."""
    block = source.load([0, row, column])
    return tl.reshape(block, [2 * block.shape[1], block.shape[2]])
''',
    "both_products": '''
@triton.jit
def both_products(joined, order):
    """Two products side by side, each by itself; the second matrix comes first if order is 3."""
    WIDE: tl.constexpr = joined.shape[1] // 2
    halves = tl.permute(tl.reshape(joined, [joined.shape[0], 2, WIDE]), (0, 2, 1))
    left, right = tl.split(halves)
    return tl.where(order == 3, right, left), tl.where(order == 3, left, right)
''',
    "on_axis": '''
@triton.jit
def on_axis(place, size):
    """True for indices in the range of an axis."""
    return (place >= 0) & (place < size)
''',
    "square": """
@triton.jit
def square(x):
    return x * x
""",
    "whole_power": """
@triton.jit
def whole_power(x, n: tl.constexpr):
    result = x
    for _ in tl.static_range(n - 1):
        result *= x
    return result
""",
    "tanh": '''
@triton.jit
def tanh(x):
    """By exp, and near 0, where that cancels, by its series."""
    shrunk = tl.exp(-2 * tl.abs(x))
    large = (1 - shrunk) / (1 + shrunk)
    s = x * x
    series = x + x * s * (-1 / 3 + s * (2 / 15 + s * (-17 / 315 + s * (62 / 2835))))
    return tl.where(s < 0.0625, series, tl.where(x < 0, -large, large))
''',
    "one_plus_erf": '''
@triton.jit
def one_plus_erf(x):
    """By 1 - erf(a) = 2^(-a P(a)) with a = |x|, for which P is a polynomial.

    The error is at most 1.3e-7. Below 0 nothing cancels: down to -5 it is 1e-4 of the result.
    """
    a = tl.abs(x)
    p = -1.6796593962269857e-05 + a * 7.450752198207776e-07
    p = -0.0008145597471909841 + a * (0.00015964941836221885 + a * p)
    p = 0.0001128548648083507 + a * (0.0021419603102384808 + a * p)
    p = 0.14836313399179984 + a * (-0.027871552137063053 + a * p)
    p = 1.6279077753580244 + a * (0.9184335563372398 + a * p)
    tail = tl.exp2(-a * p)
    return tl.where(x < 0, tail, 2 - tail)
''',
    "log1p_of_share": '''
@triton.jit
def log1p_of_share(x):
    """log(1 + x) of 0 <= x <= 1, by a polynomial; the error is at most 2e-7 of the result."""
    p = 0.01985146291553974 + x * -0.0032440251670777798
    p = 0.10603655129671097 + x * (-0.05695953592658043 + x * p)
    p = 0.1967593878507614 + x * (-0.15305592119693756 + x * p)
    p = 0.3332996368408203 + x * (-0.24954134225845337 + x * p)
    return x * (1 + x * (-0.4999990165233612 + x * p))
''',
    "negative_zero": '''
@triton.jit
def negative_zero():
    """-0.0, by its bits: every 0 that Triton makes of a number is positive."""
    return tl.full([], -(2**31), tl.int32).to(tl.float32, bitcast=True)
''',
    "larger": '''
@triton.jit
def larger(x, y):
    """The larger number, or NaN: Triton's own maximum of a block skips NaN."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
''',
    "smaller": """
@triton.jit
def smaller(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
""",
    "sign": """
@triton.jit
def sign(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, x))
""",
    "whole_sign": """
@triton.jit
def whole_sign(x):
    return tl.where(x > 0, 1, tl.where(x < 0, -1, 0))
""",
    "round_half_to_even": """
@triton.jit
def round_half_to_even(x):
    below = tl.floor(x)
    odd = below != 2 * tl.floor(below / 2)
    up = (x - below > 0.5) | ((x - below == 0.5) & odd)
    return tl.where(up, below + 1, below)
""",
    "truncate": """
@triton.jit
def truncate(x):
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))
""",
    "floor_divide": '''
@triton.jit
def floor_divide(x, y):
    """Of whole numbers; Triton's own // rounds towards 0."""
    quotient = x // y
    return tl.where((quotient * y != x) & ((x < 0) != (y < 0)), quotient - 1, quotient)
''',
    "modulo": '''
@triton.jit
def modulo(x, y):
    """Of whole numbers, with the sign of y; Triton's own % has that of x."""
    rest = x % y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
''',
    "float_modulo": """
@triton.jit
def float_modulo(x, y):
    return x - tl.floor(x / y) * y
""",
    "log_add_exp": '''
@triton.jit
def log_add_exp(x, y):
    """log(exp(x) + exp(y)); log(1 + z) is exact to the last digits also for a small z."""
    z = tl.exp(-tl.abs(x - y))
    u = 1 + z
    log1p = tl.where(u == 1, z, tl.log(u) * (z / tl.where(u == 1, 1.0, u - 1)))
    return tl.where(x == y, x + 0.6931471805599453, tl.where((x > y) | (x != x), x, y) + log1p)
''',
    "product": """
@triton.jit
def product(x, y):
    return x * y
""",
}
