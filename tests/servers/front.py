"""A process in front of a server, which a test can kill: what the server holds stays, as behind a real store's gateway.

python front.py PORT OF_THE_SERVER [OWN PORT [DELAY]]      prints the port that it listens on

OWN PORT: 0 for any. DELAY: seconds by which everything that the server says comes later, as from far away.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress


async def copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float = 0) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(2**16):
            await asyncio.sleep(delay_s)
            writer.write(data)
            await writer.drain()
    writer.close()


async def main(server: int, own: int = 0, delay_s: float = 0) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", server)
        await asyncio.gather(copy_stream(reader, back), copy_stream(there, writer, delay_s))

    listening = await _listen(serve, own)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


async def _listen(serve: Callable[..., Awaitable[None]], own: int) -> asyncio.Server:
    """Its own port again: where somebody's connection has it just now, a moment later."""
    while True:
        try:
            return await asyncio.start_server(serve, "127.0.0.1", own)
        except OSError:
            if not own:
                raise
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:3]), *map(float, sys.argv[3:])))
