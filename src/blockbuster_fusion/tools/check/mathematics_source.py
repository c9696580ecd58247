"""The C program that checks a function of the mathematics; `@NAME@` is replaced."""

SOURCE = """
typedef @NARROW@ narrow;
typedef @BROAD@ broad;

enum { BLOCK = 1024, BIAS = @BIAS@, DIGITS = @DIGITS@, ARITY = @ARITY@ };

static const double SPECIAL[] = {
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 0.3, -0.3, 2.5, -2.5, 1e6, -1e6,
    16777215.0, -16777215.0, 9007199254740991.0, -9007199254740991.0, 1e30, -1e30,
    INFINITY, -INFINITY, NAN, 88.72283, -88.72283, 103.9, -103.98, 709.78, -745.13, -708.4,
    128.0, -126.0, -149.5, -150.5, 1024.0, -1022.0, -1074.5, 1e-40, -1e-40, 1.4e-45, -1.4e-45,
    1.17549435e-38, 3.4028234e38, -3.4028234e38, 2.2250738585072014e-308, 4.9e-324, -4.9e-324,
    1e-310, 1.7976931348623157e308, -1.7976931348623157e308, 0.9, 1.0000001, 0.99999994, 3.95,
    5.95, 0x1.6ac5b262ca1ffp+849, 0x1.921fb54442d18p+0, 0x1.921fb54442d18p+1, 281474976710656.0,
    1.1805916207174113e+21, 67108864.0, 0.70710678118654752, 1.4142135623730951, 9.1, 19.1,
};
enum { SPECIALS = sizeof SPECIAL / sizeof *SPECIAL };

static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A number from 0 to 1. */
static double part(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; }

static narrow any_bits(uint64_t bits) {
    narrow x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Special numbers, any bits, usual sizes, multiples of pi/2, and numbers around 1. */
static narrow argument(int64_t at, uint64_t random) {
    const uint64_t more = mixed(random);
    const double sign = more & 1 ? 1.0 : -1.0;
    switch (at % 5) {
    case 0: return any_bits(random);
    case 1: return (narrow)(sign * exp2(part(random) * 80.0 - 65.0));
    case 2: return (narrow)(sign * (1 + part(more)) * exp2((double)(random % 11)));
    case 3: return (narrow)(sign * (double)(random >> (more % 62 + 1)) * 1.5707963267948966);
    default: return (narrow)(1.0 + sign * exp2(part(random) * -54.0));
    }
}

/* A base and an exponent whose power is mostly finite. */
static void arguments(int64_t at, narrow *x, narrow *y) {
    const uint64_t random = mixed((uint64_t)at), more = mixed(random);
    if (at < SPECIALS * SPECIALS) {
        *x = (narrow)SPECIAL[at % SPECIALS];
        *y = (narrow)SPECIAL[at / SPECIALS];
        return;
    }
    *x = argument(at, random);
    *y = 0;
    if (ARITY == 1) return;
    const double size = fabs((double)*x), reach = (BIAS + DIGITS) * (2.1 * part(more) - 1.05);
    *y = (narrow)(reach / log2(size));
    if (at % 7 == 0) *y = argument(at / 7, more);
    if (at % 7 == 1) *y = (narrow)rint((double)*y);
}

/* The error in units of the last place; infinity stands for the power of two beyond all numbers. */
static double error(narrow found, broad exact) {
    const broad top = ldexp@SUFFIX@(1, BIAS + 1), size = fabs@SUFFIX@(exact);
    const int undefined = exact != exact, made_undefined = found != found;
    if (undefined || made_undefined) return undefined == made_undefined ? 0 : INFINITY;
    if (exact == 0 && found == 0) return !signbit(exact) == !signbit(found) ? 0 : INFINITY;
    const broad near = size > top ? copysign@SUFFIX@(top, exact) : exact;
    const broad made = isinf(found) ? copysign@SUFFIX@(top, found) : (broad)found;
    int exponent;
    frexp@SUFFIX@(near, &exponent);
    exponent = exponent < 2 - BIAS ? 2 - BIAS : exponent > BIAS + 1 ? BIAS + 1 : exponent;
    return (double)ldexp@SUFFIX@(fabs@SUFFIX@(made - near), DIGITS - exponent);
}

static __attribute__((noinline)) void compute(const narrow *RESTRICT x, const narrow *RESTRICT y,
                                              narrow *RESTRICT found) {
    (void)y;
    for (int at = 0; at < BLOCK; at += 16) {
@FUNCTION@
    }
}

static broad expected(broad x, broad y) {
    (void)y;
    return @REFERENCE@;
}

/* The largest error, and its arguments, of all bits from a first number on or of a sample. */
void check(int full, int64_t first, int64_t count, int64_t every, int64_t threads, double *worst) {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t start = 0; start < count; start += BLOCK) {
        narrow x[BLOCK], y[BLOCK], found[BLOCK];
        double largest = -1;
        int64_t where = 0;
        for (int64_t i = 0; i < BLOCK; i++) {
            const int64_t at = first + (start + i < count ? start + i : count - 1);
            if (full) x[i] = any_bits((uint32_t)(at * every)), y[i] = 0;
            else arguments(at, x + i, y + i);
        }
        compute(x, y, found);
        for (int64_t i = 0; i < BLOCK; i++) {
            const broad exact = expected(x[i], y[i]);
            if (largest >= 0.5 && found[i] == (narrow)exact && exact != 0) continue; /* rounded */
            const double own = error(found[i], exact);
            if (own > largest) largest = own, where = i;
        }
#pragma omp critical
        if (largest > worst[0]) worst[0] = largest, worst[1] = x[where], worst[2] = y[where];
    }
}
"""
