"""Run LazyLLM on an unmodified transformers model, through its own `generate`.

`enable` patches the model with `model_patches`, which turn passes of its decoder into steps of an `engine`. What is not
supported is refused: a model in `model_support`, arguments in `arguments`, masks and positions in `packing`.
"""
