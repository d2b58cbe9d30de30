"""Several configurations measured in turn, ranked, and the best one named: what ``shardlab.compare`` is made of."""
