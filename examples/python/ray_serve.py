"""OpenAI's API on Ray Serve: each replica is a `ptero serve` of its own (needs `ray[serve]` and `httpx`).

    serve run examples.python.ray_serve:app model=/models/smol.pte replicas=4 cpus=8

Any replica may answer: a text depends on the request and its seed, not on who generates it. As a program,
`python ray_serve.py [PTERO]` starts two replicas with the included model and asks them the same.
"""

import asyncio
import ctypes
import shutil
import signal
import sys
from collections.abc import AsyncIterator

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from ray import serve

api = FastAPI()

#: Headers that describe a connection or its bytes, and not what is sent.
OF_A_CONNECTION = {"connection", "content-length", "date", "host", "keep-alive", "server", "transfer-encoding"}


def end_with_parent() -> None:
    """On Linux, a process ends when the one that started it does, however that happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


async def copy(log: asyncio.StreamReader) -> None:
    """Copies the server's log to that of the replica."""
    async for line in log:
        print(line.decode(), end="", file=sys.stderr)


async def pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The bytes of an answer. A client that leaves closes it, which ends its text."""
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()


@serve.deployment(max_ongoing_requests=80)
@serve.ingress(api)
class Replica:
    """``max_ongoing_requests`` is the sum of the server's `--lanes` and `--queue`: what comes beyond waits in Ray."""

    def __init__(self, command: str, arguments: list[str]) -> None:
        self.command = [command, "serve", "--port", "0", *arguments]
        self.process: asyncio.subprocess.Process | None = None
        self.client = httpx.AsyncClient()
        self.starting = asyncio.Lock()

    async def connected(self) -> httpx.AsyncClient:
        """Starts the server unless it runs, and waits until its model is loaded."""
        async with self.starting:
            if self.process is None or self.process.returncode is not None:
                self.process = await asyncio.create_subprocess_exec(
                    *self.command, stderr=asyncio.subprocess.PIPE, preexec_fn=end_with_parent
                )
                assert self.process.stderr
                while not (line := (await self.process.stderr.readline()).decode()).startswith("page: "):
                    print(line, end="", file=sys.stderr)
                    if not line:
                        raise RuntimeError("`ptero serve` ended before it could answer")
                self.log = asyncio.create_task(copy(self.process.stderr))
                await self.client.aclose()
                # A text may take long: Ray limits the time of a request, by `request_timeout_s`.
                self.client = httpx.AsyncClient(base_url=line.split()[1], timeout=None, limits=httpx.Limits())
            return self.client

    async def check_health(self) -> None:
        """Ray replaces a replica whose server does not answer."""
        (await (await self.connected()).get("/ready", timeout=10)).raise_for_status()

    @api.api_route("/v1/{path:path}", methods=["GET", "POST"])
    async def forward(self, path: str, request: Request) -> StreamingResponse:
        """Passes a request on, and the answer back as it comes."""
        client = await self.connected()
        headers = {name: value for name, value in request.headers.items() if name not in OF_A_CONNECTION}
        asked = client.build_request(request.method, f"/v1/{path}", headers=headers, content=await request.body())
        answer = await client.send(asked, stream=True)
        headers = {name: value for name, value in answer.headers.items() if name not in OF_A_CONNECTION}
        return StreamingResponse(pieces(answer), answer.status_code, headers)


def app(args: dict[str, str]) -> serve.Application:
    """The application. All arguments may be left out: `model`, `replicas`, `cpus` of each, and `command`, which is `ptero`."""
    cpus = int(args.get("cpus", "1"))
    command = args.get("command") or shutil.which("ptero") or "ptero"
    arguments = ["--threads", str(cpus), *([args["model"]] if "model" in args else [])]
    options = {"num_replicas": int(args.get("replicas", "1")), "ray_actor_options": {"num_cpus": cpus}}
    return Replica.options(**options).bind(command, arguments)


if __name__ == "__main__":
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": 8123})
    serve.run(app({"replicas": "2", "command": sys.argv[1] if len(sys.argv) > 1 else ""}))
    question = {"prompt": "Once upon a time", "max_tokens": 24, "seed": 42, "temperature": 0.8}
    for _ in range(4):
        answer = httpx.post("http://127.0.0.1:8123/v1/completions", json=question, timeout=120).raise_for_status()
        print(answer.json()["choices"][0]["text"].replace("\n", " "))
    serve.shutdown()
