"""The method itself, for any decoder; it imports nothing but torch.

Read in this order: `schedule` (where tokens are pruned), `importance` (Eq. 1), `ranking` (the interface of other
rankings), `groups` and `sequence` (active sets, slots), `engine` (a pass: rank, prune, revive, attend), `attention`.
A stage decides in `Engine._survivors`; `Engine.prune_and_gather` prunes, and revives tokens from the Aux Cache.
"""
