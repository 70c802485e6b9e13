"""Bearer tokens of other servers, from environment variables: no artifact and no command line holds one.

``SLOTOOL_REMOTE_TOKENS`` says which variable holds the token of which server: ``models.example.com:8000=VARIABLE``,
several apart by spaces. A token goes to the server that is named, host and port, and to no other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from slotool.errors import InputError

VARIABLE = "SLOTOOL_REMOTE_TOKENS"


def headers_for(url: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What shows the token to the server behind ``url``; empty where none is named for it.

    Raises ``InputError`` for an entry that is not HOST:PORT=NAME, and for a variable that is not set or holds no token.
    """
    for entry in environment.get(VARIABLE, "").split():
        server, equals, name = entry.partition("=")
        if not equals or not server or not name:
            raise InputError(f"{VARIABLE}: an entry is not HOST:PORT=NAME, such as models.example.com:8000=MY_TOKEN")
        if server.lower() != urlsplit(url).netloc.lower():
            continue
        token = environment.get(name, "").strip()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise InputError(f"{VARIABLE}: ${name}, for {server}, is not set to a token of visible ASCII characters")
        return {"authorization": f"Bearer {token}"}
    return {}
