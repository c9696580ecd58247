"""Example programs: the paper's own, in the paper's form, and realistic ones."""

import inspect
from collections.abc import Callable

from blockbuster_fusion.array import ops
from blockbuster_fusion.array.arrays import Array, elementwise
from blockbuster_fusion.array.program import ArrayProgram
from blockbuster_fusion.array.trace import trace
from blockbuster_fusion.errors import UnknownExample

EXAMPLES: dict[str, Callable[[], ArrayProgram]] = {}
"""Every example by its name on the command line."""


def example(function: Callable[[], ArrayProgram]) -> Callable[[], ArrayProgram]:
    """Registers an example under its name, with dashes."""
    EXAMPLES[function.__name__.replace("_", "-")] = function
    return function


def find(name: str) -> ArrayProgram:
    """The example called `name`."""
    key = name.replace("_", "-")
    if key not in EXAMPLES:
        raise UnknownExample(name=name, known=", ".join(EXAMPLES))
    return EXAMPLES[key]()


def about(name: str) -> str:
    """The docstring of the example called `name`; empty if there is none of that name."""
    found = EXAMPLES.get(name.replace("_", "-"))
    return "" if found is None else inspect.getdoc(found) or ""


# ---------------------------------------------------------------- the paper's


@example
def matmul_relu() -> ArrayProgram:
    """The introduction's example: a matmul, then RELU."""

    def program(A: Array, BT: Array) -> dict[str, Array]:
        return {"C": ops.relu(A @ BT.T)}

    return trace(program, A="M K", BT="N K", name="matmul_relu")


@example
def attention() -> ArrayProgram:
    """Example 1: unsafe attention, from which Flash Attention follows.

    Where D and L have one block each, its last snapshot is the original Flash Attention kernel.
    """

    def program(Q: Array, KT: Array, VT: Array) -> dict[str, Array]:
        scores = (Q @ KT.T) * ops.size(Q, 1) ** -0.5
        return {"O": ops.softmax(scores) @ VT.T}

    return trace(program, Q="M D", KT="N D", VT="L N", name="attention")


@example
def layernorm_matmul() -> ArrayProgram:
    """Example 2: LayerNorm (without epsilon, as in the paper), then a matmul."""

    def program(X: Array, YT: Array) -> dict[str, Array]:
        width = ops.size(X, 1)
        minus_mean = elementwise(lambda s: -s / width, X.sum(-1, keepdims=True))
        shifted = X + minus_mean
        squares = ops.square(X).sum(-1, keepdims=True)
        inverse = elementwise(lambda s, m: (s / width - m**2) ** -0.5, squares, minus_mean)
        return {"Z": (shifted * inverse) @ YT.T}

    return trace(program, X="M K", YT="N K", name="layernorm_matmul")


@example
def rmsnorm_swiglu() -> ArrayProgram:
    """Example 3: RMSNorm (in the paper's form: neither mean nor epsilon) and FFN-SwiGLU."""

    def program(X: Array, WT: Array, VT: Array, UT: Array) -> dict[str, Array]:
        normed = X * ops.rsqrt(ops.square(X).sum(-1, keepdims=True))
        return {"O": (ops.swish(normed @ WT.T) * (normed @ VT.T)) @ UT.T}

    return trace(program, X="M D", WT="K D", VT="K D", UT="N K", name="rmsnorm_swiglu")


# ---------------------------------------------------------------- realistic ones


def _scores(Q: Array, KT: Array) -> Array:
    return (Q @ KT.swapaxes(-1, -2)) * ops.size(Q, -1) ** -0.5


def _causal(scores: Array) -> Array:
    visible = ops.index(scores, -1) <= ops.index(scores, -2)
    masked: Array = ops.where(visible, scores, -1e30)
    return masked


@example
def additive_mask_attention() -> ArrayProgram:
    """Attention with a mask that is added to the scores."""

    def program(Q: Array, KT: Array, VT: Array, mask: Array) -> dict[str, Array]:
        return {"O": ops.softmax(_scores(Q, KT) + mask) @ VT.T}

    return trace(program, Q="M D", KT="N D", VT="L N", mask="M N", name="additive_mask_attention")


@example
def causal_attention() -> ArrayProgram:
    """Attention whose causal mask is made from indices."""

    def program(Q: Array, K: Array, V: Array) -> dict[str, Array]:
        return {"O": ops.softmax(_causal(_scores(Q, K))) @ V}

    return trace(program, Q="M D", K="N D", V="N L", name="causal_attention")


@example
def multi_head_attention() -> ArrayProgram:
    """Batched multi-head attention with a causal mask that all heads share."""

    def program(Q: Array, K: Array, V: Array) -> dict[str, Array]:
        return {"O": ops.softmax(_causal(_scores(Q, K))) @ V}

    return trace(program, Q="B H M D", K="B H N D", V="B H N L", name="multi_head_attention")


@example
def sliding_window_attention() -> ArrayProgram:
    """Batched multi-head attention in which a row sees itself and the 63 before it."""

    def program(Q: Array, K: Array, V: Array) -> dict[str, Array]:
        scores = _scores(Q, K)
        row, column = ops.index(scores, -2), ops.index(scores, -1)
        visible = (column <= row) & (column > row - 64)
        return {"O": ops.softmax(ops.where(visible, scores, -1e30)) @ V}

    return trace(program, Q="B H M D", K="B H N D", V="B H N L", name="sliding_window_attention")


@example
def softcap_attention() -> ArrayProgram:
    """Attention whose scores are capped by a tanh."""

    def program(Q: Array, KT: Array, VT: Array) -> dict[str, Array]:
        capped = elementwise(lambda s: 50 * ops.tanh(s / 50), _scores(Q, KT))
        return {"O": ops.softmax(capped) @ VT.T}

    return trace(program, Q="M D", KT="N D", VT="L N", name="softcap_attention")


@example
def layernorm_linear() -> ArrayProgram:
    """LayerNorm with weight and bias, then a linear layer with bias."""

    def program(X: Array, g: Array, b: Array, WT: Array, c: Array) -> dict[str, Array]:
        return {"Z": ops.layernorm(X, g, b) @ WT.T + c}

    return trace(program, X="M K", g="K", b="K", WT="N K", c="N", name="layernorm_linear")


@example
def rmsnorm_swiglu_residual() -> ArrayProgram:
    """RMSNorm with weight, FFN-SwiGLU and the residual."""

    def program(X: Array, g: Array, WT: Array, VT: Array, UT: Array) -> dict[str, Array]:
        normed = ops.rmsnorm(X, g)
        return {"O": X + (ops.swish(normed @ WT.T) * (normed @ VT.T)) @ UT.T}

    return trace(
        program,
        X="M D",
        g="D",
        WT="K D",
        VT="K D",
        UT="D K",
        name="rmsnorm_swiglu_residual",
    )


@example
def gelu_mlp() -> ArrayProgram:
    """LayerNorm, linear, GELU, linear and the residual."""

    def program(
        X: Array, g: Array, b: Array, WT: Array, c: Array, UT: Array, d: Array
    ) -> dict[str, Array]:
        hidden = ops.gelu(ops.layernorm(X, g, b) @ WT.T + c)
        return {"O": X + (hidden @ UT.T + d)}

    return trace(program, X="M D", g="D", b="D", WT="K D", c="K", UT="D K", d="D", name="gelu_mlp")


@example
def attention_projection() -> ArrayProgram:
    """Attention and its output projection."""

    def program(Q: Array, KT: Array, VT: Array, WT: Array) -> dict[str, Array]:
        return {"O": (ops.softmax(_scores(Q, KT)) @ VT.T) @ WT.T}

    return trace(program, Q="M D", KT="N D", VT="L N", WT="E L", name="attention_projection")


@example
def qk_norm_attention() -> ArrayProgram:
    """Attention with weighted RMSNorm on queries and keys."""

    def program(Q: Array, K: Array, VT: Array, gq: Array, gk: Array) -> dict[str, Array]:
        scores = _scores(ops.rmsnorm(Q, gq), ops.rmsnorm(K, gk))
        return {"O": ops.softmax(scores) @ VT.T}

    return trace(program, Q="M D", K="N D", VT="L N", gq="D", gk="D", name="qk_norm_attention")


@example
def grouped_query_attention() -> ArrayProgram:
    """Attention in which R query heads share one head of keys and values."""

    def program(Q: Array, K: Array, V: Array) -> dict[str, Array]:
        scores = _scores(Q, K[:, :, None])
        return {"O": ops.softmax(scores) @ V[:, :, None]}

    return trace(program, Q="B G R M D", K="B G N D", V="B G N L", name="grouped_query_attention")


@example
def causal_grouped_query_attention() -> ArrayProgram:
    """Attention with a causal mask in which R query heads share one head of keys and values."""

    def program(Q: Array, K: Array, V: Array) -> dict[str, Array]:
        scores = _causal(_scores(Q, K[:, :, None]))
        return {"O": ops.softmax(scores) @ V[:, :, None]}

    return trace(
        program,
        Q="B G R M D",
        K="B G N D",
        V="B G N L",
        batch="R",
        name="causal_grouped_query_attention",
    )


@example
def lora() -> ArrayProgram:
    """A linear layer with a low-rank correction."""

    def program(X: Array, WT: Array, AT: Array, BT: Array) -> dict[str, Array]:
        return {"Z": X @ WT.T + (X @ AT.T) @ BT.T}

    return trace(program, X="M K", WT="N K", AT="R K", BT="N R", name="lora")


@example
def three_matmuls() -> ArrayProgram:
    """A chain of three matmuls."""

    def program(X: Array, AT: Array, BT: Array, CT: Array) -> dict[str, Array]:
        return {"Z": ((X @ AT.T) @ BT.T) @ CT.T}

    return trace(program, X="M K", AT="P K", BT="R P", CT="N R", name="three_matmuls")


@example
def layernorm_qkv() -> ArrayProgram:
    """One LayerNorm that feeds the projections to queries, keys and values."""

    def program(X: Array, g: Array, b: Array, A: Array, B: Array, C: Array) -> dict[str, Array]:
        normed = ops.layernorm(X, g, b)
        return {"Q": normed @ A.T, "K": normed @ B.T, "V": normed @ C.T}

    return trace(program, X="M E", g="E", b="E", A="D E", B="D E", C="D E", name="layernorm_qkv")


@example
def softmax() -> ArrayProgram:
    """Softmax alone."""

    def program(X: Array) -> dict[str, Array]:
        return {"O": ops.softmax(X)}

    return trace(program, X="M N", name="softmax")


@example
def safe_softmax_attention() -> ArrayProgram:
    """Attention with the safe softmax written out: maximum, difference, exp, sum, quotient."""

    def program(Q: Array, KT: Array, VT: Array) -> dict[str, Array]:
        scores = _scores(Q, KT)
        e = ops.exp(scores - scores.max(-1, keepdims=True))
        return {"O": (e / e.sum(-1, keepdims=True)) @ VT.T}

    return trace(program, Q="M D", KT="N D", VT="L N", name="safe_softmax_attention")


@example
def two_pass_layernorm_matmul() -> ArrayProgram:
    """LayerNorm whose variance is the mean square of the differences, then a matmul."""

    def program(X: Array, YT: Array) -> dict[str, Array]:
        width = ops.size(X, 1)
        minus_mean = elementwise(lambda s: -s / width, X.sum(-1, keepdims=True))
        shifted = X + minus_mean
        squares = ops.square(shifted).sum(-1, keepdims=True)
        inverse = elementwise(lambda s: (s / width + 1e-5) ** -0.5, squares)
        return {"Z": (shifted * inverse) @ YT.T}

    return trace(program, X="M K", YT="N K", name="two_pass_layernorm_matmul")


@example
def attention_logsumexp() -> ArrayProgram:
    """Attention that also returns the logarithm of each row's sum."""

    def program(Q: Array, KT: Array, VT: Array) -> dict[str, Array]:
        e = ops.exp(_scores(Q, KT))
        total = e.sum(-1, keepdims=True)
        return {"O": (e * ops.reciprocal(total)) @ VT.T, "lse": ops.log(total)}

    return trace(program, Q="M D", KT="N D", VT="L N", name="attention_logsumexp")


@example
def decoder_layer() -> ArrayProgram:
    """A pre-norm decoder layer: RMSNorm, attention with a causal mask, RMSNorm, SwiGLU, residuals.

    Keys and values come from the same sequence, so their axis is renamed.
    """

    def program(
        X: Array,
        g1: Array,
        g2: Array,
        Wq: Array,
        Wk: Array,
        Wv: Array,
        Wo: Array,
        W: Array,
        V: Array,
        U: Array,
    ) -> dict[str, Array]:
        normed = ops.rmsnorm(X, g1)
        queries, keys, values = (normed @ weight for weight in (Wq, Wk, Wv))
        attended = ops.softmax(_causal(_scores(queries, keys))) @ values
        middle = X + attended @ Wo
        normed = ops.rmsnorm(middle, g2)
        return {"O": middle + (ops.swish(normed @ W) * (normed @ V)) @ U}

    return trace(
        program,
        X="M E",
        g1="E",
        g2="E",
        Wq="E D",
        Wk="E D",
        Wv="E D",
        Wo="D E",
        W="E F",
        V="E F",
        U="F E",
        name="decoder_layer",
    )


@example
def self_attention() -> ArrayProgram:
    """Queries, keys and values all from one X: its sequence axis stands twice, once renamed."""

    def program(X: Array, Wq: Array, Wk: Array, Wv: Array) -> dict[str, Array]:
        return {"O": ops.softmax(_scores(X @ Wq, X @ Wk)) @ (X @ Wv)}

    return trace(program, X="M E", Wq="E D", Wk="E D", Wv="E D", name="self_attention")


@example
def parallel_attention_ffn() -> ArrayProgram:
    """Attention and a GELU layer side by side on one norm, both added to the residual."""

    def program(
        X: Array, C: Array, g: Array, Wq: Array, Wk: Array, Wv: Array, Wo: Array, W: Array, U: Array
    ) -> dict[str, Array]:
        normed = ops.rmsnorm(X, g)
        attended = ops.softmax(_scores(normed @ Wq, C @ Wk)) @ (C @ Wv)
        return {"O": X + attended @ Wo + ops.gelu(normed @ W) @ U}

    return trace(
        program,
        X="M E",
        C="N E",
        g="E",
        Wq="E D",
        Wk="E D",
        Wv="E D",
        Wo="D E",
        W="E F",
        U="F E",
        name="parallel_attention_ffn",
    )


@example
def low_rank_kv_attention() -> ArrayProgram:
    """Attention whose keys and values are made from one low-rank latent, as in MLA."""

    def program(Q: Array, C: Array, A: Array, Bk: Array, Bv: Array) -> dict[str, Array]:
        latent = C @ A
        return {"O": ops.softmax(_scores(Q, latent @ Bk)) @ (latent @ Bv)}

    return trace(
        program, Q="M D", C="N E", A="E R", Bk="R D", Bv="R L", name="low_rank_kv_attention"
    )


@example
def linear_attention() -> ArrayProgram:
    """Attention without softmax, normalised by a sum over the keys."""

    def program(Q: Array, K: Array, V: Array) -> dict[str, Array]:
        q, k = (elementwise(lambda t: 1 + ops.maximum(t, 0), x) for x in (Q, K))
        scores = q @ k.T
        return {"O": (scores @ V) / scores.sum(axis=-1, keepdims=True)}

    return trace(program, Q="M D", K="N D", V="N L", name="linear_attention")


@example
def post_norm_linear() -> ArrayProgram:
    """A linear layer, the residual, and the LayerNorm after it."""

    def program(X: Array, R: Array, WT: Array, g: Array, b: Array) -> dict[str, Array]:
        return {"O": ops.layernorm(R + X @ WT.T, g, b)}

    return trace(program, X="M K", R="M N", WT="N K", g="N", b="N", name="post_norm_linear")


@example
def language_model_head() -> ArrayProgram:
    """RMSNorm, the projection to the vocabulary, and log-softmax."""

    def program(X: Array, g: Array, WT: Array) -> dict[str, Array]:
        return {"O": ops.log_softmax(ops.rmsnorm(X, g) @ WT.T)}

    return trace(program, X="M K", g="K", WT="V K", name="language_model_head")


@example
def expert() -> ArrayProgram:
    """One expert of a mixture: SwiGLU, scaled by the router's weight for each row."""

    def program(X: Array, p: Array, WT: Array, VT: Array, UT: Array) -> dict[str, Array]:
        hidden = ops.swish(X @ WT.T) * (X @ VT.T)
        return {"O": (hidden @ UT.T) * p[:, None]}

    return trace(program, X="M D", p="M", WT="K D", VT="K D", UT="N K", name="expert")


@example
def residual_layers() -> ArrayProgram:
    """Two RMSNorm + GELU layers with their residuals, one after the other."""

    def program(X: Array, W1: Array, U1: Array, W2: Array, U2: Array) -> dict[str, Array]:
        middle = X + ops.gelu(ops.rmsnorm(X) @ W1) @ U1
        return {"O": middle + ops.gelu(ops.rmsnorm(middle) @ W2) @ U2}

    return trace(program, X="M E", W1="E F", U1="F E", W2="E G", U2="G E", name="residual_layers")
