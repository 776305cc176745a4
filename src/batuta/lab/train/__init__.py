"""The policy learns: SFT warm-up, then reinforcement learning (the only home of torch)."""
