"""Who gets which sample: the order of an epoch, the ledger of what was delivered, and the audit of it."""
