"""The method itself, for any decoder; it imports nothing but torch.

Read on in this order: `schedule` (where tokens are pruned), `importance` (Eq. 1, and who goes on), `ranking` (the
interface of another importance), `state` (active sets, slots, Aux Cache, keys and values), `engine` (one pass: score,
keep, prune, revive, attend), `attention` (under a mask), `stats` (what was computed).
"""
