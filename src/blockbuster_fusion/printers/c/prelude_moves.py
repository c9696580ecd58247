"""Loads, lookups and stores of the C prelude."""


def _widen(stored: str, held: str, text: str) -> str:
    return f"widened_bfloat16({text})" if stored == "bfloat16" != held else text


def _narrow(stored: str, held: str, text: str) -> str:
    if stored == held:
        return text
    return f"narrowed_bfloat16({text})" if stored == "bfloat16" else f"({stored})({text})"


def load(stored: str, held: str) -> str:
    """Loads a block into a tile; it is transposed if its columns are contiguous in memory."""
    return f"""\
/* tile[i][j] = block[i*b_i + j*b_j] */
static void load_{stored}_{held}({held} *RESTRICT tile, int64_t t_i, const {stored} *RESTRICT block,
                         int64_t b_i, int64_t b_j, int64_t I, int64_t J) {{
    enum {{ TURN = 16 }};
    if (b_j == 1) {{
        for (int64_t i = 0; i < I; i++)
#pragma omp simd
            for (int64_t j = 0; j < J; j++)
                tile[i * t_i + j] = {_widen(stored, held, "block[i * b_i + j]")};
        return;
    }}
    for (int64_t j = 0; j < J; j += TURN)
        for (int64_t i = 0; i < I; i += TURN) {{
            int64_t wide = MIN(TURN, J - j), high = MIN(TURN, I - i);
            if (b_i == 1 && wide == TURN && high == TURN) {{
                {held} turned[TURN][TURN];
                for (int w = 0; w < TURN; w++)
#pragma omp simd
                    for (int h = 0; h < TURN; h++)
                        turned[w][h] = {_widen(stored, held, "block[i + h + (j + w) * b_j]")};
                for (int h = 0; h < TURN; h++)
#pragma omp simd
                    for (int w = 0; w < TURN; w++) tile[(i + h) * t_i + j + w] = turned[w][h];
                continue;
            }}
            for (int64_t h = 0; h < high; h++)
                for (int64_t w = 0; w < wide; w++)
                    tile[(i + h) * t_i + j + w] =
                        {_widen(stored, held, "block[(i + h) * b_i + (j + w) * b_j]")};
        }}
}}
"""


def take(stored: str, held: str, index: str) -> str:
    """Loads elements of a table into a tile, a band of rows at once, each along its columns.

    A band with an index out of range is not loaded.
    """
    value = _widen(stored, held, "table[places[w] * step + i * t_i + w * t_j]")
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
    return f"""\
/* block[i*b_i + j*b_j] = tile[i][j] */
static void store_{stored}_{held}({stored} *RESTRICT block, int64_t b_i, int64_t b_j,
                          const {held} *RESTRICT tile, int64_t t_i, int64_t I, int64_t J) {{
    enum {{ TURN = 16 }};
    if (b_j == 1) {{
        for (int64_t i = 0; i < I; i++)
#pragma omp simd
            for (int64_t j = 0; j < J; j++)
                block[i * b_i + j] = {_narrow(stored, held, "tile[i * t_i + j]")};
        return;
    }}
    for (int64_t j = 0; j < J; j += TURN)
        for (int64_t i = 0; i < I; i += TURN)
            for (int64_t w = j; w < MIN(j + TURN, J); w++)
                for (int64_t h = i; h < MIN(i + TURN, I); h++)
                    block[h * b_i + w * b_j] = {_narrow(stored, held, "tile[h * t_i + w]")};
}}
"""
