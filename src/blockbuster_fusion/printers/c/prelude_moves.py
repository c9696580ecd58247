"""Loads, lookups and stores of the C prelude."""


def _converted(stored: str, held: str, text: str) -> str:
    """A number that is loaded, as the type in which it is held."""
    if held == "bfloat16":
        return _narrow(held, stored, text)
    return f"widened_bfloat16({text})" if stored == "bfloat16" else text


def _narrow(stored: str, held: str, text: str) -> str:
    if stored == held:
        return text
    return f"narrowed_bfloat16({text})" if stored == "bfloat16" else f"({stored})({text})"


_LANES = {
    "float": "int32_t",
    "double": "int64_t",
    "_Float16": "int16_t",
    "bfloat16": "int16_t",
    "bfloat16_pair": "int32_t",
}


def turn(c_type: str) -> str:
    """Transposes 8×8 elements in registers, by interleaving rows three times."""

    def step(made: str, pairs: list[tuple[str, str]], low: str, high: str) -> str:
        texts = [
            f"{made}{2 * n + at} = SHUFFLE(order_{c_type}, {a}, {b}, {order})"
            for n, (a, b) in enumerate(pairs)
            for at, order in enumerate((low, high))
        ]
        return ",\n        ".join(texts)

    rows = ",\n        ".join(f"x{n} = *(const eight_{c_type} *)(from + {n} * f)" for n in range(8))
    ones = step("a", [(f"x{2 * n}", f"x{2 * n + 1}") for n in range(4)],
                "0, 8, 1, 9, 4, 12, 5, 13", "2, 10, 3, 11, 6, 14, 7, 15")  # fmt: skip
    twos = step("b", [("a0", "a2"), ("a1", "a3"), ("a4", "a6"), ("a5", "a7")],
                "0, 1, 8, 9, 4, 5, 12, 13", "2, 3, 10, 11, 6, 7, 14, 15")  # fmt: skip
    fours = step("c", [(f"b{n}", f"b{n + 4}") for n in range(4)],
                 "0, 1, 2, 3, 8, 9, 10, 11", "4, 5, 6, 7, 12, 13, 14, 15")  # fmt: skip
    stores = "\n    ".join(
        f"*(eight_{c_type} *)(to + {n // 2 + 4 * (n % 2)} * t) = c{n};" for n in range(8)
    )
    return f"""\
typedef {c_type} eight_{c_type}
    __attribute__((vector_size(8 * sizeof({c_type})), aligned(__alignof__({c_type})), may_alias));
typedef {_LANES.get(c_type, c_type)} order_{c_type}
    __attribute__((vector_size(8 * sizeof({c_type}))));

/* to[i*t + j] = from[i + j*f] for i, j < 8 */
INLINE void turn_{c_type}({c_type} *to, int64_t t, const {c_type} *from, int64_t f) {{
    const eight_{c_type} {rows};
    const eight_{c_type} {ones};
    const eight_{c_type} {twos};
    const eight_{c_type} {fours};
    {stores}
}}
"""


SHUFFLE = """\
#if defined(__clang__)
#define SHUFFLE(order, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(order, a, b, ...) __builtin_shuffle(a, b, (order){__VA_ARGS__})
#endif
"""


def load(stored: str, held: str) -> str:
    """Loads a block into a tile; it is transposed if its columns are contiguous in memory."""
    value = _converted(stored, held, "block[(i + h) * b_i + (j + w) * b_j]")
    turned = f"turn_{stored}(tile + i * t_i + j, t_i, block + i + j * b_j, b_j);"
    if (stored, held) == ("bfloat16", "float"):
        turned = _LOADED_PAIRS
    elif stored != held:
        wide = _converted(stored, held, "turned[h * TURN + w]")
        turned = f"""\
{stored} turned[TURN * TURN];
                turn_{stored}(turned, TURN, block + i + j * b_j, b_j);
                for (int h = 0; h < HIGH; h++)
#pragma omp simd
                    for (int w = 0; w < TURN; w++)
                        tile[(i + h) * t_i + j + w] = {wide};"""
    return f"""\
/* tile[i][j] = block[i*b_i + j*b_j] */
static __attribute__((noinline)) void load_{stored}_{held}(
    {held} *RESTRICT tile, int64_t t_i, const {stored} *RESTRICT block,
    int64_t b_i, int64_t b_j, int64_t I, int64_t J) {{
    enum {{ TURN = 8, HIGH = {_high(stored, held)} }};
    if (b_j == 1) {{
        for (int64_t i = 0; i < I; i++)
#pragma omp simd
            for (int64_t j = 0; j < J; j++)
                tile[i * t_i + j] = {_converted(stored, held, "block[i * b_i + j]")};
        return;
    }}
    for (int64_t j = 0; j < J; j += TURN)
        for (int64_t i = 0; i < I; i += HIGH) {{
            int64_t wide = MIN(TURN, J - j), high = MIN(HIGH, I - i);
            if ({_can_turn(stored, held)}) {{
                /* The next rows of memory: processors do not foresee parts of rows. */
                for (int w = 0; w < TURN; w++)
                    __builtin_prefetch(block + i + (j + TURN + w) * b_j, 0, 2);
                {turned}
                continue;
            }}
            for (int64_t h = 0; h < high; h++)
                for (int64_t w = 0; w < wide; w++)
                    tile[(i + h) * t_i + j + w] = {value};
        }}
}}
"""


def _high(stored: str, held: str) -> int:
    """The rows of a tile that are transposed at a time: of 16-bit numbers, eight pairs."""
    return 16 if (stored, held) == ("bfloat16", "float") else 8


def _can_turn(stored: str, held: str) -> str:
    """The condition on which a block is transposed in registers."""
    even = " && b_j % 2 == 0" if (stored, held) == ("bfloat16", "float") else ""
    return f"b_i == 1{even} && wide == TURN && high == HIGH"


_LOADED_PAIRS = """\
bfloat16_pair turned[TURN * TURN];
                turn_bfloat16_pair(turned, TURN, (const bfloat16_pair *)(block + i + j * b_j),
                                   b_j / 2);
                for (int h = 0; h < TURN; h++)
#pragma omp simd
                    for (int w = 0; w < TURN; w++) {
                        const uint32_t both = turned[h * TURN + w];
                        tile[(i + 2 * h) * t_i + j + w] = widened_bfloat16((bfloat16)both);
                        tile[(i + 2 * h + 1) * t_i + j + w] = widened_bfloat16(both >> 16);
                    }"""
_STORED_PAIRS = """\
bfloat16_pair turned[TURN * TURN];
                for (int h = 0; h < TURN; h++)
#pragma omp simd
                    for (int w = 0; w < TURN; w++) {
                        const float *low = tile + (i + 2 * h) * t_i + j;
                        turned[h * TURN + w] = narrowed_bfloat16(low[w]) |
                                               (uint32_t)narrowed_bfloat16(low[t_i + w]) << 16;
                    }
                turn_bfloat16_pair((bfloat16_pair *)(block + i + j * b_j), b_j / 2, turned,
                                   TURN);"""
"""Numbers of two rows of a tile are pairs, which are transposed as one number."""


def take(stored: str, held: str, index: str) -> str:
    """Loads elements of a table into a tile, a band of rows at once, each along its columns.

    A band with an index out of range is not loaded.
    """
    value = _converted(stored, held, "table[places[w] * step + i * t_i + w * t_j]")
    return f"""\
/* tile[i][j] = table[places[j]*step + i*t_i + j*t_j] */
static void take_{stored}_{held}_{index}(
    {held} *RESTRICT tile, int64_t row, const {stored} *RESTRICT table, int64_t length,
    const {index} *RESTRICT places, int64_t step, int64_t t_i, int64_t t_j, int64_t I, int64_t J,
    int *outside) {{
    enum {{ BAND = 16 }};
    for (int64_t j = 0; j < J; j += BAND) {{
        const int64_t end = MIN(j + BAND, J);
        int inside = 1;
        for (int64_t w = j; w < end; w++) inside &= on_axis(places[w], length, outside);
        if (!inside) continue;
        for (int64_t i = 0; i < I; i++)
            for (int64_t w = j; w < end; w++)
                tile[i * row + w] = {value};
    }}
}}
"""


def store(stored: str, held: str) -> str:
    """Stores a tile into a block; it is transposed if its columns are contiguous in memory."""
    value = _narrow(stored, held, "tile[(i + h) * t_i + j + w]")
    turned = f"turn_{stored}(block + i + j * b_j, b_j, tile + i * t_i + j, t_i);"
    if (stored, held) == ("bfloat16", "float"):
        turned = _STORED_PAIRS
    elif stored != held:
        turned = f"""\
{stored} turned[TURN * TURN];
                for (int h = 0; h < HIGH; h++)
#pragma omp simd
                    for (int w = 0; w < TURN; w++)
                        turned[h * TURN + w] = {value};
                turn_{stored}(block + i + j * b_j, b_j, turned, TURN);"""
    return f"""\
/* block[i*b_i + j*b_j] = tile[i][j] */
static __attribute__((noinline)) void store_{stored}_{held}(
    {stored} *RESTRICT block, int64_t b_i, int64_t b_j,
    const {held} *RESTRICT tile, int64_t t_i, int64_t I, int64_t J) {{
    enum {{ TURN = 8, HIGH = {_high(stored, held)} }};
    if (b_j == 1) {{
        for (int64_t i = 0; i < I; i++)
#pragma omp simd
            for (int64_t j = 0; j < J; j++)
                block[i * b_i + j] = {_narrow(stored, held, "tile[i * t_i + j]")};
        return;
    }}
    for (int64_t j = 0; j < J; j += TURN)
        for (int64_t i = 0; i < I; i += HIGH) {{
            int64_t wide = MIN(TURN, J - j), high = MIN(HIGH, I - i);
            if ({_can_turn(stored, held)}) {{
                {turned}
                continue;
            }}
            for (int64_t w = 0; w < wide; w++)
                for (int64_t h = 0; h < high; h++)
                    block[(i + h) * b_i + (j + w) * b_j] = {value};
        }}
}}
"""
