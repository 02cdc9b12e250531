"""The relay alone, without routing, store and log: what `tests.bench.relay --bare` puts beside the product."""

import argparse
import asyncio
import sys

import uvloop
from aiohttp import web

from proxy.endpoint import parse_endpoint
from proxy.relay import Client, ConnectionPool, Frontend, Outgoing, check_request, exchange, read_body


class EndMark:
    """The cheapest watch there is."""

    def __init__(self) -> None:
        self.whole = False

    def see(self, data: bytes) -> None:
        # `in` would try to read the mark as a number first, and build an exception each time.
        if data.find(b'"done":true') >= 0:
            self.whole = True

    def complete(self) -> bool:
        return self.whole


async def serve(options: argparse.Namespace) -> None:
    pool = ConnectionPool(parse_endpoint(options.backend), max_idle=256)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        client = Client(request)
        if (refused := check_request(request)) is not None:
            client.reply(refused[0], [], refused[1].encode())
            return client.response()
        body = await read_body(request, 2**26)
        outgoing = Outgoing(request.method, request.raw_path, list(request.headers.items()), body)
        await exchange(pool, outgoing, client, watch=EndMark(), on_first_byte=lambda: None, headers=[])
        return client.response()

    server = await asyncio.get_running_loop().create_server(Frontend(answer), "127.0.0.1", options.port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--backend", required=True)
    uvloop.run(serve(parser.parse_args()))
