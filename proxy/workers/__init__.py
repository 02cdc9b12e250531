"""Several processes that serve clients on one address: started, watched and replaced by the main process.

`crew` and `worker` are the main process's side, `post` is a worker's, `orders` is what they say to each other.
"""
