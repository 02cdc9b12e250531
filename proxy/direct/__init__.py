"""Direct news: what proxies of one box tell each other over unix sockets while the store is away."""
