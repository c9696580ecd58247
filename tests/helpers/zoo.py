"""Small transformers with random weights: one Architecture for each family in the zoo.

Weights are seeded, and large enough that every part of a model shows in its outputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

import torch
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

VOCABULARY = 128
FIRST_WORD = 4
"""Words below it have a meaning of their own in some models: padding, beginning, end."""
MARGIN = 8.0
"""The distance between the scores of the experts that a word wants and of the others."""


class Takes(Enum):
    """The inputs of a model."""

    TEXT = "text"
    TWO_TEXTS = "two texts"
    IMAGE = "image"
    SPEECH = "speech"
    SPEECH_AND_TEXT = "speech and text"


@dataclass(frozen=True)
class Architecture:
    """A family of models, and one small member of it."""

    name: str
    model: str
    """The class in `transformers`."""
    config: Mapping[str, object]
    takes: Takes = Takes.TEXT
    attentions: int = 2
    """Attentions in one call."""
    kinds: tuple[str, ...] = ("eager", "sdpa")
    """The implementations of attention that the model has."""
    router: str = ""
    """The parameters of a mixture of experts that choose the experts."""
    gains: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Factors for parameters whose names end so, where the usual size is too large or small."""
    note: str = ""
    """A remark on its special features."""

    @property
    def has_length(self) -> bool:
        """True if its inputs may have several lengths."""
        return self.takes in {Takes.TEXT, Takes.TWO_TEXTS, Takes.SPEECH_AND_TEXT}

    @property
    def coverage(self) -> float:
        """The least share of operators inside fused regions: choosing experts is not one."""
        return 0.85 if self.router else 0.95

    def build(self, dtype: torch.dtype = torch.float32, attention: str = "eager") -> nn.Module:
        """The model in evaluation mode: the same weights each time, rounded to the dtype."""
        assert attention in self.kinds, f"{self.name} has no {attention} attention"
        model_class = getattr(transformers, self.model)
        config = model_class.config_class(**self.config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = model_class._from_config(config, dtype=dtype, attn_implementation=attention)
        with torch.no_grad():
            _enliven(model, self.gains)
            if self.router:
                _separate_routes(model, self.router)
        return model.eval()

    def inputs(
        self,
        length: int = 24,
        batch: int = 2,
        padded: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> dict[str, Tensor]:
        """Keyword arguments; `padded` takes words from the middle and the end of later texts."""
        generator = torch.Generator().manual_seed(length)

        def text(prefix: str, length: int) -> dict[str, Tensor]:
            ids = torch.randint(FIRST_WORD, VOCABULARY, (batch, length), generator=generator)
            if not padded:
                return {f"{prefix}input_ids": ids}
            mask = torch.ones(batch, length, dtype=torch.long)
            # Few words are missing, so each word sees another through every window:
            # the result of attention to nothing depends on its spelling.
            mask[1:, length // 4 + 1 : min(length // 2, length // 4 + 6)] = 0
            mask[1:, length - min(length // 4, 3) :] = 0
            padding = self.config.get("pad_token_id") or 0
            return {
                f"{prefix}input_ids": ids.masked_fill(mask == 0, padding),
                f"{prefix}attention_mask": mask,
            }

        def numbers(*shape: int) -> Tensor:
            return torch.randn(batch, *shape, generator=generator).to(dtype)

        match self.takes:
            case Takes.TEXT:
                return text("", length)
            case Takes.TWO_TEXTS:
                return text("", length + 5) | text("decoder_", length)
            case Takes.IMAGE:
                return {"pixel_values": numbers(3, 32, 32)}
            case Takes.SPEECH:
                return {"input_features": numbers(16, 48)}
            case Takes.SPEECH_AND_TEXT:
                return {"input_features": numbers(16, 48)} | text("decoder_", length)

    @staticmethod
    def output(made: transformers.utils.ModelOutput) -> list[Tensor]:
        """The tensors to compare."""
        names = ("logits", "last_hidden_state", "pooler_output")
        return [made[name] for name in names if made.get(name) is not None]


def _enliven(model: nn.Module, gains: Mapping[str, float]) -> None:
    """Give each parameter a size at which it matters: models start with many zeros and ones."""
    generator = torch.Generator().manual_seed(0)
    seen: set[int] = set()
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue  # two names, one tensor
            seen.add(id(parameter))
            noise = torch.randn(parameter.shape, generator=generator)
            for ending, gain in gains.items():
                if f"{path}.{name}".endswith(ending):
                    noise = noise * gain
            if parameter.ndim == 1:
                parameter.copy_(parameter.float() + 0.2 * noise)
            else:
                parameter.copy_(_size(module, name, parameter) * noise)


def _size(module: nn.Module, name: str, parameter: Tensor) -> float:
    """The standard deviation of a matrix or a table."""
    if name.endswith("bias"):
        return 0.2
    if isinstance(module, nn.Embedding) or parameter.shape[0] == 1:
        return 0.7
    if isinstance(module, Conv1D):
        return 1.3 * parameter.shape[0] ** -0.5
    if parameter.ndim == 3 and not isinstance(module, nn.Conv1d):  # experts, either way round
        return 1.3 * (parameter.shape[1] * parameter.shape[2]) ** -0.25
    return 1.3 * (parameter.numel() / parameter.shape[0]) ** -0.5


def _separate_routes(model: nn.Module, router: str) -> None:
    """Let each word want two experts so much that rounding never changes its choice."""
    words = model.get_input_embeddings().weight
    routers = [p for name, p in model.named_parameters() if name.endswith(router)]
    assert routers, f"no parameter's name ends in {router}"
    experts = routers[0].shape[0]
    wanted = torch.arange(VOCABULARY) % (experts // 2)
    wants = wanted[:, None] == torch.arange(experts) // 2
    words[:, :experts] += torch.where(wants, MARGIN, -MARGIN).to(words.dtype)
    for weight in routers:
        weight *= 0.1
        weight[:, :experts] += torch.eye(experts, dtype=weight.dtype)


# ---------------------------------------------------------------- the families

Config = dict[str, object]
WORDS: Config = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "max_position_embeddings": 1024,
    "use_cache": False,
}
SIZES: Config = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TWO_STACKS: Config = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}
IMAGE = SIZES | {"image_size": 32, "patch_size": 8}
SPEECH = TWO_STACKS | {"num_mel_bins": 16, "max_source_positions": 24, "max_target_positions": 1024}
T5 = WORDS | {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
GROUPED: Config = {"num_key_value_heads": 2}
HEADS: Config = {"head_dim": 16}
WINDOW: Config = {"sliding_window": 8}
MIXED: Config = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
EXPERTS: Config = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT: Config = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "first_k_dense_replace": 1,
}
UNSCALED = MappingProxyType({"Attention.q.weight": 0.25})
"""T5 does not divide its scores by the root of the width."""
SCALED = MappingProxyType({"embed_tokens.weight": 0.125})
"""Gemma multiplies its words by the root of the width."""


def rotary(part: float) -> Config:
    """Rotary embeddings of a part of each head."""
    kind = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": part}
    return {"rope_parameters": kind}


def language_model(name: str, model: str, *parts: Config, **more: object) -> Architecture:
    """A model that sees the words so far; `more` are fields of the Architecture."""
    return encoder(name, model, {"tie_word_embeddings": False}, *parts, **more)


def encoder(name: str, model: str, *parts: Config, **more: object) -> Architecture:
    """A model of one text; `more` are fields of the Architecture."""
    config = WORDS | SIZES
    for part in parts:
        config |= part
    return Architecture(name, model, config, **more)


ARCHITECTURES: tuple[Architecture, ...] = (
    # Language models: rotary embeddings, RMSNorm, a gated layer.
    language_model("llama", "LlamaForCausalLM", GROUPED),
    language_model("qwen2", "Qwen2ForCausalLM", GROUPED),
    language_model("qwen3", "Qwen3ForCausalLM", GROUPED, HEADS),
    language_model("mistral", "MistralForCausalLM", GROUPED, WINDOW, note="sliding window"),
    language_model(
        "ministral", "MinistralForCausalLM", GROUPED, HEADS, MIXED, note="a window in one layer"
    ),
    language_model(
        "gemma",
        "GemmaForCausalLM",
        HEADS,
        {"num_key_value_heads": 1},
        gains=SCALED,
        note="one key head",
    ),
    language_model(
        "gemma2",
        "Gemma2ForCausalLM",
        GROUPED | HEADS | MIXED,
        {"query_pre_attn_scalar": 16, "attn_logit_softcapping": 4.0},
        {"final_logit_softcapping": 8.0},
        kinds=("eager",),
        gains=SCALED,
        note="softcapped scores; a window in one layer",
    ),
    language_model(
        "gemma3",
        "Gemma3ForCausalLM",
        GROUPED | HEADS | MIXED,
        {"query_pre_attn_scalar": 16},
        gains=SCALED,
        note="norms of queries and keys; a window in one layer",
    ),
    language_model(
        "phi3", "Phi3ForCausalLM", GROUPED, WINDOW, note="joint projections; sliding window"
    ),
    language_model("stablelm", "StableLmForCausalLM", GROUPED, rotary(0.25)),
    language_model(
        "olmo", "OlmoForCausalLM", {"clip_qkv": 2.0}, note="norms without weights; clipping"
    ),
    language_model("olmo2", "Olmo2ForCausalLM", GROUPED, note="norms after the layers"),
    language_model("olmo3", "Olmo3ForCausalLM", GROUPED, MIXED),
    language_model(
        "cohere", "CohereForCausalLM", GROUPED, {"use_qk_norm": True}, note="one norm, two branches"
    ),
    language_model(
        "cohere2", "Cohere2ForCausalLM", GROUPED, MIXED, note="no positions in the full layer"
    ),
    language_model(
        "granite",
        "GraniteForCausalLM",
        GROUPED,
        {"embedding_multiplier": 2.0, "residual_multiplier": 0.5},
        {"attention_multiplier": 0.2, "logits_scaling": 4.0},
    ),
    language_model("starcoder2", "Starcoder2ForCausalLM", GROUPED, WINDOW),
    language_model(
        "glm", "GlmForCausalLM", GROUPED, HEADS, rotary(0.5), note="rotary pairs are neighbours"
    ),
    language_model("glm4", "Glm4ForCausalLM", GROUPED, HEADS, rotary(0.5)),
    language_model("smollm3", "SmolLM3ForCausalLM", GROUPED, {"no_rope_layers": [1, 0]}),
    language_model("exaone4", "Exaone4ForCausalLM", GROUPED, MIXED),
    language_model("nemotron", "NemotronForCausalLM", GROUPED, rotary(0.5), note="squared relu"),
    language_model("helium", "HeliumForCausalLM", GROUPED, HEADS),
    language_model("ernie4.5", "Ernie4_5ForCausalLM", GROUPED, HEADS),
    language_model(
        "diffllama",
        "DiffLlamaForCausalLM",
        GROUPED,
        attentions=4,
        note="differences of two attentions",
    ),
    # Language models: the older ones.
    language_model("phi", "PhiForCausalLM", rotary(0.5)),
    language_model("gpt2", "GPT2LMHeadModel", {"n_inner": 128}),
    language_model(
        "gpt-neo",
        "GPTNeoForCausalLM",
        {"attention_types": [[["global", "local"], 1]]},
        kinds=("eager",),
    ),
    language_model("gpt-neox", "GPTNeoXForCausalLM", rotary(0.25)),
    language_model("gpt-j", "GPTJForCausalLM", {"rotary_dim": 8, "n_inner": 128}, kinds=("eager",)),
    language_model("gpt-bigcode", "GPTBigCodeForCausalLM", {"n_inner": 128}),
    language_model(
        "codegen", "CodeGenForCausalLM", {"rotary_dim": 8, "n_inner": 128}, kinds=("eager",)
    ),
    language_model("opt", "OPTForCausalLM", {"ffn_dim": 128, "word_embed_proj_dim": 64}),
    language_model("bloom", "BloomForCausalLM", note="ALiBi", kinds=("eager",)),
    language_model(
        "mpt",
        "MptForCausalLM",
        {"max_seq_len": 1024, "expansion_ratio": 2},
        note="ALiBi",
        kinds=("eager",),
    ),
    language_model("falcon", "FalconForCausalLM", {"ffn_hidden_size": 128}, note="one key head"),
    language_model("persimmon", "PersimmonForCausalLM", {"qk_layernorm": True}, rotary(0.5)),
    # Mixtures of experts, and attention through a narrow latent space.
    language_model(
        "mixtral",
        "MixtralForCausalLM",
        GROUPED,
        EXPERTS,
        {"num_local_experts": 8},
        router="gate.weight",
    ),
    language_model(
        "qwen2-moe",
        "Qwen2MoeForCausalLM",
        GROUPED,
        EXPERTS,
        {"num_experts": 8, "shared_expert_intermediate_size": 32},
        router="mlp.gate.weight",
    ),
    language_model(
        "qwen3-moe",
        "Qwen3MoeForCausalLM",
        GROUPED,
        HEADS,
        EXPERTS,
        {"num_experts": 8},
        router="gate.weight",
    ),
    language_model(
        "olmoe", "OlmoeForCausalLM", GROUPED, EXPERTS, {"num_experts": 8}, router="gate.weight"
    ),
    language_model(
        "gpt-oss",
        "GptOssForCausalLM",
        GROUPED | HEADS | MIXED | EXPERTS,
        {"num_local_experts": 8},
        router="router.weight",
        kinds=("eager",),
        gains=MappingProxyType({"sinks": 10.0}),
        note="a sink in each softmax; a window in one layer",
    ),
    language_model(
        "deepseek-v2", "DeepseekV2ForCausalLM", EXPERTS, LATENT, router="mlp.gate.weight"
    ),
    language_model(
        "deepseek-v3",
        "DeepseekV3ForCausalLM",
        EXPERTS,
        LATENT,
        {"n_group": 2, "topk_group": 1},
        router="mlp.gate.weight",
    ),
    # Encoders.
    encoder("bert", "BertModel"),
    encoder("roberta", "RobertaModel", {"max_position_embeddings": 1026, "pad_token_id": 1}),
    encoder("distilbert", "DistilBertModel", {"hidden_dim": 128, "dim": 64}),
    encoder("albert", "AlbertModel", {"embedding_size": 32}),
    encoder("electra", "ElectraModel", {"embedding_size": 32}),
    encoder(
        "mpnet",
        "MPNetModel",
        {"max_position_embeddings": 1026, "pad_token_id": 1},
        kinds=("eager",),
    ),
    encoder(
        "deberta-v2",
        "DebertaV2Model",
        {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16},
        {"norm_rel_ebd": "layer_norm", "share_att_key": True, "max_relative_positions": 64},
        kinds=("eager",),
        note="gathers from the scores",
    ),
    encoder("modernbert", "ModernBertModel", {"local_attention": 8}),
    encoder("nomic-bert", "NomicBertModel", HEADS),
    encoder("esm", "EsmModel", {"position_embedding_type": "rotary"}),
    encoder("clip-text", "CLIPTextModel", note="causal"),
    encoder("siglip-text", "SiglipTextModel"),
    Architecture("t5-encoder", "T5EncoderModel", T5, gains=UNSCALED, note="bias of distances"),
    # Encoders and decoders.
    Architecture(
        "t5", "T5ForConditionalGeneration", T5, Takes.TWO_TEXTS, attentions=6, gains=UNSCALED
    ),
    Architecture(
        "bart", "BartForConditionalGeneration", WORDS | TWO_STACKS, Takes.TWO_TEXTS, attentions=6
    ),
    Architecture(
        "m2m100",
        "M2M100ForConditionalGeneration",
        WORDS | TWO_STACKS | {"scale_embedding": False},
        Takes.TWO_TEXTS,
        attentions=6,
    ),
    Architecture("whisper", "WhisperModel", WORDS | SPEECH, Takes.SPEECH_AND_TEXT, attentions=6),
    # Images.
    Architecture("vit", "ViTModel", IMAGE, Takes.IMAGE),
    Architecture("deit", "DeiTModel", IMAGE, Takes.IMAGE),
    Architecture("dinov2", "Dinov2Model", IMAGE | {"mlp_ratio": 2}, Takes.IMAGE),
    Architecture("clip-vision", "CLIPVisionModel", IMAGE, Takes.IMAGE),
    Architecture("siglip-vision", "SiglipVisionModel", IMAGE, Takes.IMAGE, attentions=3),
    Architecture("beit", "BeitModel", IMAGE, Takes.IMAGE),
)
ZOO = {architecture.name: architecture for architecture in ARCHITECTURES}
