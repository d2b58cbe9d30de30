"""A ring of batches in shared memory: readers fill slots, the ranks of a node take views of them."""
