"""Tiny random models with a byte tokenizer, saved as a user would have them; LoRA folders written by PEFT."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_tokenizer(template=CHATML):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=SPECIAL[0], pad_token=SPECIAL[0]
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_model(kind="Llama", **changes):
    sizes = {
        "vocab_size": 259,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        # Wide, so that greedy text varies and an adapter's effect shows.
        "initializer_range": 0.3,
        "bos_token_id": None,
        "eos_token_id": 256,
        "pad_token_id": 256,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    config_class = getattr(transformers, f"{kind}TextConfig", None) or getattr(transformers, f"{kind}Config")
    config = config_class(**(sizes | changes))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    # The byte tokenizer's first 94 ids are the printable ASCII characters: it never ends by itself.
    model.get_output_embeddings().weight.data[94:] = 0
    return model


def save(folder, model=None, tokenizer=None):
    (model or tiny_model()).save_pretrained(folder)
    (tokenizer or byte_tokenizer()).save_pretrained(folder)
    return str(folder)


def save_adapter(folder, model_folder, *, seed, rank=4, alpha=8, targets=None, **options):
    """A PEFT adapter with both halves random, saved by PEFT under the name of the folder."""
    peft = pytest.importorskip("peft")
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=targets or ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
        task_type="CAUSAL_LM",
        **options,
    )
    adapted = peft.get_peft_model(model, config)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    adapted.save_pretrained(folder)
    return str(folder)
