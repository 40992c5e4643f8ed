"""What prefilling takes, counted: the operations of layers that compute so many tokens each."""

from collections.abc import Sequence

from transformers import PreTrainedModel


def operations(model: PreTrainedModel, layer_tokens: Sequence[float]) -> float:
    """The operations of layers of a model's mean size, one a number of tokens that it computes.

    Two for each matrix weight and token, four for each head dimension and attending pair; experts count as if a token
    met all of them. Embeddings and the vocabulary, of one token, are left out.
    """
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // heads)
    parts = model.get_decoder().named_parameters()  # what sees or hears has layers of its own
    weights = sum(of.numel() for name, of in parts if "layers." in name and of.ndim > 1)
    weights /= config.num_hidden_layers
    return sum(2 * weights * tokens + 2 * width * tokens * (tokens + 1) for tokens in layer_tokens)


def unpruned_operations(model: PreTrainedModel, lengths: Sequence[float]) -> float:
    """Those of the unmodified model, in all its layers, on prompts of so many tokens."""
    return operations(model, model.config.get_text_config().num_hidden_layers * [*lengths])
