import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("random", deadline=None, print_blob=True)  # make test-random
settings.load_profile("repeatable")
