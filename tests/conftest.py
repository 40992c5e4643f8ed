import os

# The models here are tiny: one thread each is faster than the threads' own bookkeeping, and steadier under load.
os.environ.setdefault("OMP_NUM_THREADS", "1")
