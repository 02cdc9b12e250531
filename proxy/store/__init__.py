"""State that outlives a process or is shared by proxies: leases, the registry of backends, who else serves this fleet.

`Store` is the one door. It speaks the Redis protocol to a server that is given, or to the one that `EmbeddedStore`
starts; nothing outside this package knows keys, scripts or connections.
"""

from proxy.store.embedded import EmbeddedStore
from proxy.store.locks import Lock, Locks, Refused
from proxy.store.records import BackendListing, BackendRecord, ClaimReply, LostLease, Occupancy
from proxy.store.store import Store
from proxy.store.trouble import StoreDown, Trouble, TroubleKind
from proxy.store.valkey_files import StoreStartError

__all__ = [
    "BackendListing",
    "BackendRecord",
    "ClaimReply",
    "EmbeddedStore",
    "Lock",
    "Locks",
    "LostLease",
    "Occupancy",
    "Refused",
    "Store",
    "StoreDown",
    "StoreStartError",
    "Trouble",
    "TroubleKind",
]
