"""The policy learns: warm start, then reinforcement learning (the only home of torch)."""
