"""Anthropic: a conversation with a function that the model may call.

export ANTHROPIC_API_KEY=sk-ant-...
python examples/05_anthropic.py
"""

import anyio

import batuta
from batuta.core import Tool, ToolCall

WEATHER = Tool(
    name="read_weather",
    description="The weather in a city now.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def run_tool(call: ToolCall) -> str:
    """What the function says; a real one would ask a weather service."""
    print("called:", call.name, call.arguments)
    return "18 degrees and sunny"


async def main() -> None:
    async with batuta.open("discover", conductor="best") as session:
        run = await session.ask(
            [{"role": "user", "content": "Do I need a coat in Lisbon today?"}],
            tools=[WEATHER],
            run_tool=run_tool,
            max_tokens=20_000,
            max_seconds=60,
        )
        print(run.answer or run.error)
        print("cost of all runs:", session.spent.usd)


anyio.run(main)
