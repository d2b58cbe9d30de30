"""What `shardlab.watch` is made of: the processes of a job, their limits, causes of what they hold, the screen."""
