"""Names that are reserved in generated C and Triton files, for both printers and all files."""

import ast
import builtins
import keyword
import re
from collections.abc import Iterator

from blockbuster_fusion.naming import Reserved, word
from blockbuster_fusion.printers.c.prelude import all_parts
from blockbuster_fusion.printers.standalone_helpers import C_HELPERS, TRITON_HELPERS
from blockbuster_fusion.printers.triton.helpers import HELPERS

_C_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept
const consteval constexpr constinit continue co_await co_return co_yield decltype default delete
do double dynamic_cast else enum explicit export extern false final float for friend goto if
import inline int long module mutable namespace new noexcept not not_eq nullptr operator or or_eq
override private protected public register reinterpret_cast requires restrict return short signed
sizeof static static_assert static_cast struct switch template this thread_local throw true try
typedef typeid typename typeof typeof_unqual union unsigned using virtual void volatile wchar_t
while xor xor_eq
"""
"""Keywords of C and of C++."""

_C_MACROS = """
BIG_ENDIAN BSD BUFSIZ BYTE_ORDER DOMAIN EOF FALSE I INFINITY LITTLE_ENDIAN L_ctermid L_tmpnam
MAXFLOAT M_1_PI M_2_PI M_2_SQRTPI M_E M_LN10 M_LN2 M_LOG10E M_LOG2E M_PI M_PI_2 M_PI_4 M_SQRT1_2
M_SQRT2 NAN NFDBITS NULL OVERFLOW PDP_ENDIAN PI PLOSS P_tmpdir SING TLOSS TRUE UNDERFLOW X_TLOSS
alloca arm assert be16toh be32toh be64toh complex errno fpclassify hpux htobe16 htobe32 htobe64
htole16 htole32 htole64 i386 imaginary isfinite isgreater isgreaterequal isinf isless islessequal
islessgreater isnan isnormal isunordered le16toh le32toh le64toh linux major makedev
math_errhandling minor mips offsetof sgi sigmask signbit sparc stderr stdin stdout sun unix vax
"""
"""Macros of the C headers and compilers that no pattern below matches."""

_C_FUNCTIONS = """
a64l abort abs acos acosh aligned_alloc arc4random arc4random_buf arc4random_uniform asin asinh
at_quick_exit atan atan2 atanh atexit atof atoi atol atoll atollq bcmp bcopy bsearch bzero calloc
cbrt ceil cgetent clearenv clearerr copysign cos cosh ctermid daemon devname div dprintf drand48
drem ecvt erand48 erf erfc exit exp exp2 exp10 explicit_bzero expm1 fabs fclose fcvt fdim fdopen
feof ferror fflush ffs ffsl ffsll fgetc fgetpos fgets fileno finite flockfile floor fma fmax
fmemopen fmin fmod fopen fprintf fputc fputs fread free freopen frexp fscanf fseek fseeko fsetpos
ftell ftello ftrylockfile funlockfile fwrite gamma gcvt getbsize getc getchar getdelim getenv
getline getloadavg getprogname getsubopt getw heapsort hypot ilogb index initstate j0 j1 jn
jrand48 l64a labs lcong48 ldexp ldiv lgamma llabs lldiv llrint llround log log10 log1p log2 logb
lrand48 lrint lround malloc mblen mbstowcs mbtowc memccpy memchr memcmp memcpy memmem memmove
mempcpy memset mergesort mkdtemp mkostemp mkstemp mkstemps mktemp modf mrand48 nan nearbyint
nextafter nextdown nexttoward nextup nrand48 on_exit open_memstream pclose perror popen
posix_memalign pow printf pselect psort putc putchar putenv puts putw qecvt qfcvt qgcvt qsort
quick_exit radixsort rand random realloc reallocarray reallocf realpath remainder remove remquo
rename renameat rewind rindex rint round roundeven rpmatch scalb scalbln scalbn scanf
secure_getenv seed48 select setbuf setbuffer setenv setlinebuf setprogname setstate setvbuf
signgam significand sin sincos sinh snprintf sprintf sqrt sradixsort srand srand48 sranddev
srandom sscanf stpcpy stpncpy strcasecmp strcasestr strcat strchr strchrnul strcmp strcoll strcpy
strcspn strdup strerror strlcat strlcpy strlen strmode strncasecmp strncat strncmp strncpy
strndup strnlen strnstr strpbrk strrchr strsep strsignal strspn strstr strtod strtof strtok
strtol strtold strtoll strtoq strtoul strtoull strtouq strverscmp strxfrm swab system tan tanh
tempnam tgamma time timingsafe_bcmp tmpfile tmpnam trunc ungetc unsetenv valloc vasprintf
asprintf vdprintf vfprintf vfscanf vprintf vscanf vsnprintf vsprintf vsscanf wcstombs wctomb
xlocale y0 y1 yn main
"""
"""Functions of the C headers that generated files include, on Linux and on macOS."""

_C_LOCALS = """
buffers strides sizes threads next chunk program programs memory bytes outside astray
lanes part total wide row rows run run_end at w x half left argc argv good failed
"""
"""Variables of kernels, and of the function that tests them."""

_TRITON_LOCALS = """
tl triton torch libdevice sys pid group rows place width diagonal GROUP STAGES PROGRAMS
gdc_wait gdc_launch_dependents DEVICE INTERPRETED main good function grid options arguments warmup
num_warps num_stages num_ctas maxnreg debug sanitize_overflow instrumentation_mode
launch_cooperative_grid launch_pdl
"""
"""Variables and parameters of printed kernels, and of the calls that launch them."""

_TOKEN = re.compile(
    r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|#\s*define\s+\w+|#[^\n]*|[A-Za-z_]\w*|[{}()]', re.DOTALL
)

_DEFINE = re.compile(r"#\s*define\s+\w+")


def outer_names(source: str) -> Iterator[str]:
    """The names that a C text has outside of its functions: macros, functions, types, constants."""
    depth, in_enum = 0, False
    before = ""
    for found in _TOKEN.finditer(source):
        token = found[0]
        if token.startswith("#"):
            yield from [token.split()[-1]] if _DEFINE.fullmatch(token) else []
        elif token in ("{", "("):
            in_enum = in_enum or (depth == 0 and before == "enum")
            depth += 1
        elif token in ("}", ")"):
            depth -= 1
            in_enum = in_enum and depth > 0
        elif (depth == 0 or in_enum) and (token[0].isalpha() or token[0] == "_"):
            yield token
        before = token


def _python_names(source: str) -> Iterator[str]:
    """The functions of a Python text."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name


def _c_functions() -> Iterator[str]:
    for name in _C_FUNCTIONS.split():
        yield name
        yield from (f"{name}{suffix}" for suffix in ("f", "l", "_r", "_l"))


C = Reserved(
    frozenset(
        [
            *(_C_WORDS + _C_MACROS + _C_LOCALS).split(),
            *_c_functions(),
            *outer_names(all_parts()),
            *outer_names(C_HELPERS),
        ]
    ),
    # Counters and constants of a kernel, arrays of a test, types, OpenMP, and families of macros.
    re.compile(
        r"[ci]\d+|array_\w*[^\W_]|\w+_t|(omp|GOMP|kmpc?)_\w*[^\W_]|U?INT\w*_(MAX|MIN|C|WIDTH)"
        r"|(FP|FE|FD|HUGE|WCHAR|WINT|PTRDIFF|SIZE|SIG|EXIT|RAND|MB|SEEK|MATH|TMP|FOPEN|FILENAME)"
        r"_\w*[^\W_]|(PRI|SCN|CLOCK|DBL|FLT|LDBL|BLOCKBUSTER)_\w*[^\W_]"
        r"|W(IF|EXIT|STOP|TERM|NO|CO|UN|CORE)[A-Z]+"
    ),
)
"""The reserved names of a C file."""

TRITON = Reserved(
    frozenset(
        [
            *keyword.kwlist,
            *keyword.softkwlist,
            *dir(builtins),
            *_TRITON_LOCALS.split(),
            *HELPERS,
            *_python_names(TRITON_HELPERS),
        ]
    ),
    re.compile(r"array_\w*[^\W_]"),
)
"""The reserved names of a Triton file."""


def kernel_name(name: str) -> str:
    """The name of a program as a valid function name in C and in Python."""
    made = word(name, "kernel")
    for reserved in (C, TRITON):
        if made in reserved or reserved.avoided(made) != made:
            return f"kernel_{made}"
    return made
