"""Tools that Batuta runs itself: for models while they answer, and as workers of a workflow.

A new `ToolSource` gets a setting in `config/tool_settings.py` and is opened for models by
`open_served_tools` in `config/tools.py`. To be a worker as well, it needs a provider in
`TOOL_PROVIDERS` (`clients/providers.py`), a case in `open_tool_client` (`config/tools.py`) and in
`config/workers.py`, and a rule in `_TOOL_RULES` (`language/prompt.py`).
"""
