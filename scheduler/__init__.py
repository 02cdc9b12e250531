"""The decision: pure, synchronous, without clock, randomness or I/O.

Events go in, effects come out (`core.Scheduler.handle`). A *request* asks for slots of a *backend*; while it holds
them it has a *lease*; while it waits it is a *ticket*. Deciding is one function, `decide.decide`, over an immutable
*snapshot*; its *decision* carries the whole ranking and every rejection, so that logs, headers, `explain` and tests
all read the same struct. Time is an argument everywhere: seconds on one monotonic scale, chosen by the caller.
"""
