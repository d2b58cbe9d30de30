"""What a large job will need of memory, from a few small runs of it: a linear model, its fit, its sentences."""
