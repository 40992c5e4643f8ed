"""What is refused of models, calls and inputs: one table of what is wrong, and what would be right."""

from typing import Any

from torch import nn

from lazyllm.core.errors import LazyLLMError

_MESSAGES = {
    # models, their adapters and their weights
    "not_transformers": "{name} is not a Hugging Face model: give lazyllm.enable a transformers PreTrainedModel",
    "encoder_decoder": "{name} is an encoder-decoder: LazyLLM prunes decoder-only models, such as Llama or Qwen",
    "own_cache": "{name} goes by a cache of a kind of its own, in whose place LazyLLM's cannot stand",
    "stacks": "{name} has {what} of decoder layers that know their place in it: LazyLLM needs a decoder-only language model with exactly one",
    "other_outputs": "{name} gives other outputs than a language model's, of hidden states that LazyLLM does not compute: give lazyllm.enable the language model, or the decoder alone with newest_only=True",
    "no_head": "{name} has no language-modelling head, and its hidden states are of every token: LazyLLM computes the newest token's alone, which newest_only=True accepts",
    "enabled": "LazyLLM is already enabled on this model, or on one with the same config object: leave the first `with` before the next",
    "attention_kind": "attention implementation {implementation!r} is not supported: load the model with attn_implementation={known}",
    "stateful": "{name} has {stateful} layers, which carry a state over all tokens in order, and a token that comes back later cannot enter it: prune for good, with selection=lazyllm.Importance(for_good=True)",
    "merging": "{name} has {kinds} layers, which choose or merge tokens themselves: LazyLLM prunes softmax attention over all of them",
    "convolution": "{name} mixes neighbouring tokens by convolution in its layers: pruning would change what they see",
    "changing_rope": "{name} makes its rotary tables inside its layers, anew as the text grows: a token that is computed later would not get those of its time",
    "bidirectional": "{name} is configured with bidirectional attention: LazyLLM needs causal attention",
    "no_interface": "the attention of {name} does not go through transformers' attention interface: use a model whose does, such as Llama or Qwen",
    "not_softmax": "the attention of {name} is not plain softmax attention: LazyLLM cannot score it",
    "several_states": "{name} has several hidden states a token (altup_num_inputs), which LazyLLM does not know how to prune",
    "shared_keys": "{name} has layers that share keys and values (num_kv_shared_layers), which LazyLLM does not know how to prune",
    "split": "{name} is split over several processes in a way that LazyLLM does not know: load the whole model with DistributedConfig(tp_size=...) alone, or in one process",
    "compiled": "{name} is compiled, which would pass LazyLLM by: load it anew and leave out torch.compile",
    "unproved_adapters": "adapters of PEFT's {unknown} are not known to treat each token by itself: merge them into the weights, with merge_and_unload(), or use plain LoRA",
    "one_scale": "activations are quantised with one scale for all tokens of a pass, so each would depend on which others are pruned: quantise with granularity=PerRow()",
    # a session, its ranking, and what it is on
    "selection_kind": "selection must be an instance of a ranking that has all its methods, such as lazyllm.Importance(queries=8), not {selection!r}",
    "min_tokens": "min_tokens must be a number of tokens, an int from 0, such as 500, not {min_tokens!r}",
    "protect_function": "protect of lazyllm.enable must be a function of a prompt's ids, such as `lambda ids: [(0, 40)]`, not {kind}: give spans or a mask to generate",
    "heads_split": "the model's heads are split over processes, and {name} does not say that it ranks alike in all of them: put importance together with self.over_processes, and say `class {name}(..., parallel=True)`",
    "single_stage": "{name} prunes at one stage, not at those of {schedule!r}",
    "no_ranking": "no stage can follow layer {layer}, which has no attention: {instead}",
    "never_entered": "this session was never entered: use it as `with lazyllm.enable(...)`, or call start()",
    "no_stats": "nothing has been generated under lazyllm.enable yet, so there are no stats: generate inside `with lazyllm.enable(...)`",
    "under_way": "{under_way} in another thread had not returned when LazyLLM ended: join threads, and read streamers to their end, inside the `with`",
    "ended": "the `with` of lazyllm.enable has ended: generate inside it",
    "copied": "a {module} cannot be copied or pickled while LazyLLM is enabled on it: do so before or after the `with`",
    "outside_pass": "a part of a model under lazyllm.enable was called outside its forward pass, or is that of another model with the same config object (give each its own), or a cache of fixed size was asked for (leave out cache_implementation)",
    "layer_replaced": "a decoder layer was replaced inside the `with`: replace layers before it",
    "attention_set": "the model's attention implementation was set inside the `with`, which leaves LazyLLM out: set it before the `with`",
    # ways to generate, and outputs asked for
    "cache_implementation": "cache_implementation={cache!r} is not supported: LazyLLM keeps a cache of its own, so leave it unset",
    "beams": "beam search ({name}) is not supported: LazyLLM's cache does not branch, so leave it unset, and for several answers use do_sample=True with num_return_sequences",
    "assisted": "assisted decoding ({name}) is not supported: it needs logits of several tokens at once, and a cache that takes tokens back, so leave it unset",
    "continuous_batching": "continuous batching is not supported: call generate with a batch of prompts",
    "virtual_tokens": "{owner} puts virtual tokens, or their keys and values, before the prompt: leave prompt learning out, or for prompt tuning give the base model inputs_embeds that begin with get_prompt(1)",
    "adapter_names": "adapter_names for several prompts are not supported: generate the prompts of each apart",
    "protect": "protect must be a mask of the prompts' tokens, bool {shape}, or spans of one prompt, such as [(0, 40)]",
    "protect_span": "protect has the span {span}, which holds none of the prompt's tokens, {first} to {last}: a span is its first token and the one after its last, and padding counts",
    "protect_ids": "protect needs the prompts as ids, input_ids of shape (sequences, tokens)",
    "loss": "a loss was asked for, of logits of every token, of which LazyLLM computes the newest token's alone: leave out labels, and ask lazyllm.log_likelihoods for the likelihood of a text",
    "every_logits": "logits of every token, or of more than the newest, were asked for, and LazyLLM computes that one's alone: pass logits_to_keep=1, accept that with newest_only=True, or score a text with lazyllm.log_likelihoods",
    "every_layer": "{asked}: these are of every token in every layer, and LazyLLM does not compute them: leave them out; record_positions=True tells which tokens each layer computes",
    "no_cache": "use_cache=False computes everything anew at each step: LazyLLM needs use_cache=True",
    "decoder_alone": "the decoder was called by itself, for hidden states of every token: LazyLLM computes the newest token's alone, so call the whole model, or accept that with lazyllm.enable(..., newest_only=True)",
    # forward passes, and what layers do in them
    "no_input": "the model was called without input_ids or inputs_embeds of shape (sequences, tokens)",
    "no_token": "the pass has no token: a prompt begins with at least one, such as BOS, and a conversation goes on with all its tokens so far and new ones behind them",
    "decoder_tensors": "the decoder takes {unknown}, as for images, which LazyLLM does not know how to prune: it prunes text",
    "deepstack": "the model adds features of images to all tokens after each of its first {deep} layers: prune after layer {deep_} or later",
    "no_position_ids": "{decoder} takes no position_ids, which tell the sequences of a batch from their padding: generate one sequence at a time",
    "one_sequence": "layers of this model carry a state over all tokens, which LazyLLM keeps for one sequence: generate one at a time",
    "checkpointing": "gradient checkpointing is on and leaves no keys and values: call model.eval() before generating",
    "training": "the model is in training mode: call model.eval() first",
    "architecture": "{what}: this architecture is not supported",
    "not_plainly_causal": "the model's attention mask is not plainly causal, as where the tokens of an image see each other: LazyLLM cannot prune under it",
    "gradients": "there are no gradients through decoding steps, whose cache is written in place: take the prompt's",
    "pass_under_way": "a forward pass with this cache is under way: each generation has its own, and is copied before or after",
    "broken_pass": "a forward pass with this cache broke off, so it is half-written: start anew",
    "longest_rope": "beyond {growth} positions this model's rotary tables depend on the longest sequence of a batch: generate one sequence at a time",
    "crossed_rope": "the generation crosses {switch} positions, where this model's rotary tables change and all of its cache with them: use a longer prompt, a prefill_chunk_size above {switch}, or fewer new tokens",
    "mixed_rope": "some sequences are longer than {switch} tokens, where this model's rotary tables change, and some are not: generate them apart",
    # masks and positions
    "positions": "the position_ids are not {where}, one for each token: LazyLLM takes a text from its first token, without gaps or packed sequences",
    "position_width": "the position_ids, or the attention mask they are counted from, are for {given} tokens, where the pass has {width}",
    "own_mask": "an attention mask of its own per query is not supported: LazyLLM is causal",
    "mask_shape": "the attention mask is of shape {mask}, where the tokens are {total} so far: LazyLLM takes a prompt from its first token, and goes on with the cache of its own output",
    "hides_computed": "the attention mask hides tokens that an earlier pass has computed: keep it as it was",
    "hides_between": "the attention mask hides tokens between others, and no position_ids say whether positions count them: give position_ids that count what the mask shows",
    "hides_last": "the attention mask hides a sequence's last token of the pass: pad prompts at their left, padding_side='left'",
    "late_tokens": "the attention mask, or the lack of one, shows tokens that it hid in an earlier pass: pass it as it was",
    "empty_chunk": "a chunk holds padding alone: use a larger prefill_chunk_size, or less padding",
    "per_token": "the {name} are of shape {given}, which is not one for each token",
    # caches
    "outside_cache": "a {cache} from outside is not supported: LazyLLM keeps a cache of its own, so leave out past_key_values, or give an empty DynamicCache()",
    "earlier_cache": "this cache is from an earlier generation or of another model: a generation stays within one `with` of lazyllm.enable, from its prompt on",
    "other_count": "{count} sequences came with the cache of {cache}: a generation goes on with the sequences it began with",
    "other_schedule": "the cache is of a generation with the schedule {begun.spec!r}: it goes on with that one",
    "cache_lacks": "LazyLLM's cache takes no token back, does not branch as beams do, is not pickled, stays where the layers are, and is read by nothing else, such as methods that compress the cache: for a second way on use copy.deepcopy, and to offload load the model with a device_map",
    "cache_elsewhere": "this cache belongs to a generation under lazyllm.enable, and to nothing else: go on with it inside the same `with` and on the same model, or start anew without past_key_values",
    # texts given as ids
    "text_ids": "{name} must be token ids of one text, a list such as [5, 6] or int64 of shape (n,) or (1, n), not {given!r}; it begins with at least one, such as BOS",
    "unknown_ids": "{name} must hold ids of the model's vocabulary, 0 to {largest}",
    "message": "a message must be a dict with a role, such as {{'role': 'user', 'content': 'Hello'}}, not {given}",
    "no_offsets": "{name} does not tell where its tokens lie in a text: give lazyllm.template_tokens a fast tokenizer, one with offsets",
}


def refusal(what: str, /, **values: Any) -> LazyLLMError:
    """The error for a row of the table, with its blanks filled: a module's by its class."""
    named = {key: type(value).__name__ if isinstance(value, nn.Module) else value for key, value in values.items()}
    return LazyLLMError(_MESSAGES[what].format(**named))


def refuse_if(wrong: object, what: str, /, **values: Any) -> None:
    """Raise `LazyLLMError` with a row of the table if something is wrong."""
    if wrong:
        raise refusal(what, **values)
