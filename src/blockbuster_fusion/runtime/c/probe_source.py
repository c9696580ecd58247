"""The C source by which a CPU is measured."""

from blockbuster_fusion.printers.c.intrinsics import TILES

SOURCE = (
    """\
#include <stdint.h>
#include <time.h>

#if defined(__AVX512F__)
#define WIDE 64
#elif defined(__AVX__)
#define WIDE 32
#else
#define WIDE 16
#endif
typedef float float32 __attribute__((vector_size(WIDE)));
typedef double float64 __attribute__((vector_size(WIDE)));

int64_t vector_bytes(void) { return WIDE; }

const char *instructions(void) {
#if defined(__AVX512F__)
    return "AVX-512";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__AVX__)
    return "AVX";
#elif defined(__SSE2__)
    return "SSE2";
#elif defined(__ARM_FEATURE_SVE)
    return "SVE";
#elif defined(__ARM_NEON)
    return "NEON";
#else
    return "";
#endif
}

static double own_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Ten chains of fused multiply-adds in registers, so that none waits for another. */
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)
#define START(C) a##C = y * (scalar)C;
#define STEP(C) a##C = a##C * x + y;
#define ADD(C) sum += a##C[0];
#define PEAK(T, S) \\
    double peak_##T(int64_t rounds) { \\
        typedef S scalar; \\
        T x, y, a0, a1, a2, a3, a4, a5, a6, a7, a8, a9; \\
        for (int i = 0; i < (int)(WIDE / sizeof(S)); i++) { x[i] = (S)0.999; y[i] = (S)1e-3; } \\
        EACH(START) \\
        for (int64_t r = 0; r < rounds; r++) { EACH(STEP) } \\
        double sum = 0; \\
        EACH(ADD) \\
        __asm__ volatile("" : "+m"(sum)); /* It is computed before a clock is read. */ \\
        return sum; \\
    }
/* The mean of the threads' own times, which leave out the turns of other programs. */
#define ALL(T) \\
    double time_of_all_##T(int64_t rounds, int64_t threads) { \\
        double total = 0, team = 0; \\
        _Pragma("omp parallel num_threads(threads) reduction(+ : total, team)") \\
        { \\
            const double began = own_time(); \\
            peak_##T(rounds); \\
            total += own_time() - began; \\
            team += 1; \\
        } \\
        return total / team; \\
    }
PEAK(float32, float)
PEAK(float64, double)
ALL(float32)
ALL(float64)

/* The same with dots of bfloat16; `dots` are the multiply-adds of a round, 0 without a unit. */
#define DOT(C) a##C = _mm512_dpbf16_ps(a##C, x, y);
#define NUMBER(C) a##C = _mm512_set1_ps(C);
#define LANE(C) sum += _mm512_cvtss_f32(a##C);
#if defined(__AVX512BF16__)
#include <immintrin.h>
int64_t dots_vector(void) { return 10 * 32; }
double peak_vector(int64_t rounds) {
    __m512 a0, a1, a2, a3, a4, a5, a6, a7, a8, a9;
    __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80), y = x;
    EACH(NUMBER)
    for (int64_t r = 0; r < rounds; r++) {
        EACH(DOT)
        __asm__ volatile("" : "+v"(x));
    }
    double sum = 0;
    EACH(LANE)
    __asm__ volatile("" : "+m"(sum));
    return sum;
}
#else
int64_t dots_vector(void) { return 0; }
double peak_vector(int64_t rounds) { return rounds; }
#endif

/* The same with tiles of 16 by 16 sums, which Linux grants to a process that asks for them. Their
   kernels have dots of vectors for few rows. */
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
"""
    + TILES
    + """\
int64_t dots_matrix(void) { return are_tiles_granted() ? 4 * 16 * 16 * 32 : 0; }
double peak_matrix(int64_t rounds) {
    _tile_loadconfig(tile_config);
    for (int64_t r = 0; r < rounds; r++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return 0;
}
#else
int64_t dots_matrix(void) { return 0; }
double peak_matrix(int64_t rounds) { return rounds; }
#endif

ALL(vector)
ALL(matrix)

/* Reads an array some number of times; each thread its own part. */
double read_all(const void *from, int64_t bytes, int64_t rounds, int64_t threads) {
    double total = 0;
    #pragma omp parallel for num_threads(threads) reduction(+ : total) schedule(static)
    for (int64_t t = 0; t < threads; t++) {
        const int64_t each = bytes / threads / (8 * WIDE);
        const float32 *x = (const float32 *)from + 8 * each * t;
        float32 a = {0}, b = {0}, c = {0}, d = {0};
        for (int64_t r = 0; r < rounds; r++) {
            for (int64_t i = 0; i < each; i++) {
                a += x[8 * i] + x[8 * i + 4];
                b += x[8 * i + 1] + x[8 * i + 5];
                c += x[8 * i + 2] + x[8 * i + 6];
                d += x[8 * i + 3] + x[8 * i + 7];
            }
            __asm__ volatile("" ::: "memory");
        }
        a += b + c + d;
        total += a[0];
    }
    return total;
}

void nothing(void) {}

void all_threads(int64_t threads) {
    #pragma omp parallel num_threads(threads)
    { __asm__ volatile("" ::: "memory"); }
}
"""
)
