"""The method itself, for any decoder; it imports nothing but torch.

Read `engine` first: a step, and in it a stage, `Engine.run_stage`. There `_rank` chooses the tokens to keep, `_prune`
stores outputs in the Aux Cache, and `_revive` takes tokens without a KV entry from it. Below are `schedule` (where
tokens are pruned), `importance` (attention probabilities), `ranking` (the interface of rankings; Eq. 1 is in
`lazyllm.rankings.attention`), `kv_cache` (keys and values of the layers between two stages, and which are active),
`sequence` (tokens and counts) and `attention` (masks, kernels).
"""
