"""A `batuta` for a shell: asks the process that has loaded the program, and ends as it says.

It loads next to nothing: `python -S -E command_line_client.py ADDRESS WORDS...`
"""

import json
import os
import socket
import sys

here = f"/proc/{os.getpid()}/fd"
wanted = {
    "args": sys.argv[2:],
    "cwd": os.getcwd(),  # noqa: PTH109 - pathlib takes longer to load than all else
    "env": dict(os.environ),
    "files": [os.devnull, f"{here}/1", f"{here}/2"],
    "code": None,
}
with socket.socket(socket.AF_UNIX) as line:
    line.connect(sys.argv[1])
    line.sendall(f"{json.dumps(wanted)}\n".encode())
    sys.exit(int(line.makefile().readline()))
