"""Gemini: a question about a picture.

export GEMINI_API_KEY=...
python examples/06_gemini.py
"""

import base64

import anyio

import batuta

PICTURE = base64.b64decode(  # a red square of 1 x 1 pixel; a path or an https: address will do as well
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)


async def main() -> None:
    async with batuta.open("discover", conductor="best") as session:
        run = await session.ask("Which colour has this picture? One word.", images=[PICTURE])
        print(run.answer or run.error)
        print(repr(run))


anyio.run(main)
