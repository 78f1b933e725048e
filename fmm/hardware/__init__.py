"""What a GPU is: limits and rates of its compute capability, its datasheet, how many thread blocks fit."""
