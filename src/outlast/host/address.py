"""The address of an agent: its class and name, and those of its parents.

As a string, an address is a path of URL segments, `Class/name` or `Class/name/Child/its-name`. It is the
key of the store's rows, and it can appear in a URL unchanged. A name may be any string without NUL. Three
names do not survive in a URL ("", "." and ".."), so a NUL is put in front of them, which no name contains.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote, unquote

from outlast.core.errors import InvalidName

MAX_BYTES = (
    1000  # of the whole address; PostgreSQL indexes about 2,700 bytes, and a key needs some of them
)
_FRAGILE = ("", ".", "..")


@dataclass(frozen=True)
class Address:
    """The place of an agent.

    ```python
    from outlast.host.address import Address
    alice = Address.of("Researcher", "alice/ö")
    assert alice.text == "Researcher/alice%2F%C3%B6"
    assert Address.parse(alice.text) == alice
    assert alice.child("Notes", "x").root == alice
    ```
    """

    path: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, kind: str, name: str) -> Address:
        """Return the address of a root agent."""
        return cls(()).child(kind, name)

    def child(self, kind: str, name: str) -> Address:
        """Return the address of a sub-agent."""
        if not isinstance(name, str):
            raise InvalidName(f"an agent's name must be a str, got {name!r}")
        if "\0" in name:
            raise InvalidName(f"an agent's name must not contain NUL, got {name!r}")
        address = Address((*self.path, (kind, name)))
        if len(address.text) > MAX_BYTES:
            raise InvalidName(
                f"an agent's address must be at most {MAX_BYTES:,} bytes, got"
                f" {len(address.text):,}. Use a shorter name, for example a hash."
            )
        return address

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address; raises `InvalidName` if `text` is not one."""
        segments = text.split("/")
        if len(segments) < 2 or len(segments) % 2:
            raise InvalidName(f"an address must look like Class/name, got {text!r}")
        address = cls(())
        try:
            for kind, name in zip(segments[::2], segments[1::2], strict=True):
                address = address.child(unquote(kind, errors="strict"), unescaped(name))
        except UnicodeDecodeError:
            raise InvalidName(f"an address must be valid UTF-8, got {text!r}") from None
        return address

    @cached_property
    def text(self) -> str:
        return "/".join(f"{quote(kind, safe='')}/{escaped(name)}" for kind, name in self.path)

    @property
    def kind(self) -> str:
        """The name of the agent's class."""
        return self.path[-1][0]

    @property
    def name(self) -> str:
        return self.path[-1][1]

    @property
    def root(self) -> Address:
        """The agent whose fence covers this one."""
        return self if len(self.path) == 1 else Address(self.path[:1])

    @property
    def parent(self) -> Address | None:
        """The parent of a sub-agent; None for a root agent."""
        return None if len(self.path) == 1 else Address(self.path[:-1])

    def covers(self, other: Address) -> bool:
        """Return whether `other` is this agent or one below it."""
        return other.path[: len(self.path)] == self.path

    def __str__(self) -> str:
        return self.text


def escaped(name: str) -> str:
    """Return a name as it appears in an address."""
    return quote("\0" + name if name in _FRAGILE else name, safe="", errors="surrogatepass")


def unescaped(segment: str) -> str:
    """Return the name that a segment of an address encodes."""
    name = unquote(segment, errors="surrogatepass")
    return name[1:] if name[:1] == "\0" and name[1:] in _FRAGILE else name
