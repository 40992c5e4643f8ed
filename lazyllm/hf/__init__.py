"""All that transformers makes necessary: LazyLLM on an unmodified model, through its own `generate`.

`enable` patches the model with `model_patches`; there passes of its decoder become steps of an `engine`. What is not
supported is refused: a model in `model_support`, arguments in `arguments`, masks and positions in `packing`.
"""
