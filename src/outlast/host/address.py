"""Where an agent lives: its class and its name, and those of its parents.

As text an address is a path of URL segments, `Class/name` or `Class/name/Child/its-name`: it is what the
store's rows are keyed by, and it can stand in a URL as it is. Names are any text but NUL. Three of them
would not survive a URL ("", "." and ".."), so they travel behind the one character that no name has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from urllib.parse import quote, unquote

from outlast.core.errors import InvalidName

MAX_BYTES = 1000  # of the whole text; PostgreSQL indexes about 2,700, and a key comes on top
_FRAGILE = ("", ".", "..")


@dataclass(frozen=True)
class Address:
    """An agent's place.

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
        """The address of a root agent."""
        return cls(()).child(kind, name)

    def child(self, kind: str, name: str) -> Address:
        """The address of a sub-agent."""
        if not isinstance(name, str):
            raise InvalidName(f"an agent's name is text, not {type(name).__name__} ({name!r})")
        if "\0" in name:
            raise InvalidName(f"an agent's name is any text without NUL; {name!r} has one")
        address = Address((*self.path, (kind, name)))
        if len(address.text) > MAX_BYTES:
            raise InvalidName(
                f"the address of this agent would take {len(address.text):,} bytes; it may take"
                f" {MAX_BYTES:,}. Use a shorter name, for example a hash."
            )
        return address

    @classmethod
    def parse(cls, text: str) -> Address:
        """The address that `text` stands for; raises `InvalidName` when it stands for none."""
        segments = text.split("/")
        if len(segments) < 2 or len(segments) % 2:
            raise InvalidName(f"{text!r} is not an address; those look like Class/name")
        address = cls(())
        try:
            for kind, name in zip(segments[::2], segments[1::2], strict=True):
                address = address.child(unquote(kind, errors="strict"), unescaped(name))
        except UnicodeDecodeError:
            raise InvalidName(
                f"{text!r} is not an address: it holds bytes that are no text"
            ) from None
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
        """The agent that this one is a sub-agent of; None: it is a root."""
        return None if len(self.path) == 1 else Address(self.path[:-1])

    def covers(self, other: Address) -> bool:
        """True when `other` is this agent, or somewhere below it."""
        return other.path[: len(self.path)] == self.path

    def __str__(self) -> str:
        return self.text


def escaped(name: str) -> str:
    """A name as it stands in the text of an address."""
    return quote("\0" + name if name in _FRAGILE else name, safe="", errors="surrogatepass")


def unescaped(segment: str) -> str:
    """The name that a segment stands for."""
    name = unquote(segment, errors="surrogatepass")
    return name[1:] if name[:1] == "\0" and name[1:] in _FRAGILE else name
