from proxy.emulated.jobs import Problem
from proxy.emulated.llama_heads import JSON, llama_head, llama_manners, problem_body
from proxy.emulated.wire import Connection, Exchange, Listener


async def never(exchange: Exchange) -> None:
    raise AssertionError(exchange)


def exchange(**headers: str) -> Exchange:
    listener = Listener(llama_manners(5.0), never)
    return Exchange(Connection(listener), "GET", "/", headers)


async def test_a_head_is_laid_out_as_the_real_one() -> None:
    head = llama_head(exchange(), 200, JSON, 15, True)
    assert head.decode().split("\r\n") == [
        "HTTP/1.1 200 OK",
        "Server: llama.cpp",
        "Access-Control-Allow-Origin: ",
        "Content-Type: application/json; charset=utf-8",
        "Content-Length: 15",
        "Keep-Alive: timeout=5, max=100",
        "",
        "",
    ]
    assert b"Access-Control-Allow-Origin: http://a\r\n" in llama_head(exchange(origin="http://a"), 200, [], None, False)
    assert llama_head(exchange(), 404, [], None, False).endswith(
        b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )


def test_a_problem_carries_its_numbers() -> None:
    assert problem_body(Problem(400, "kind", "text", {"n_ctx": 5})) == {
        "code": 400,
        "message": "text",
        "type": "kind",
        "n_ctx": 5,
    }
