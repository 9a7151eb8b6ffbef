"""URLs in messages and logs: without the password."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit


def without_password(url: str) -> str:
    """Return the URL without its password, for messages and logs."""
    parts = urlsplit(url)
    netloc = re.sub(r":[^@]*@", ":…@", parts.netloc)
    query = re.sub(r"password=[^&]*", "password=…", parts.query)
    return urlunsplit(parts._replace(netloc=netloc, query=query))
