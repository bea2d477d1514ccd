"""A process in front of a server, which a test can kill: what the server holds stays, as behind a real store's gateway.

python front.py PORT OF_THE_SERVER [OWN PORT]      prints the port that it listens on
"""

import asyncio
import sys
from contextlib import suppress


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main(server: int, own: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", server)
        await asyncio.gather(pass_on(reader, back), pass_on(there, writer))

    listening = await asyncio.start_server(serve, "127.0.0.1", own)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
