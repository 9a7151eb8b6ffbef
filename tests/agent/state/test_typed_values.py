"""Values of a user's own type: what comes back is what was given, or it was refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

import pydantic
import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field

from outlast.agent.state import typed
from outlast.core import json

T = TypeVar("T")
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Rank(IntEnum):
    LOW = 1


@dataclass
class Inner:
    x: int = 0


@dataclass(frozen=True, slots=True)
class Frozen:
    when: datetime
    how_long: timedelta = timedelta(0)


@dataclass
class Outer:
    items: list[Inner] = field(default_factory=list)
    maybe: Inner | None = None
    by_name: dict[str, Inner] = field(default_factory=dict)
    by_number: dict[int, list[Frozen]] = field(default_factory=dict)
    colour: Colour = Colour.RED
    rank: Rank = Rank.LOW
    pair: tuple[int, str] = (0, "")
    many: tuple[Inner, ...] = ()
    tags: frozenset[str] = frozenset()
    at: datetime = NOON
    day: date = date(2026, 5, 1)
    price: Decimal = Decimal("0")
    id: UUID | None = None
    raw: bytes = b""
    score: float = 0.0
    anything: Any = None


@dataclass
class Total:
    parts: list[int]
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = sum(self.parts)


@dataclass(eq=False)
class Nameless:
    inner: list[Inner]


@dataclass
class Node:
    name: str
    below: list[Node] = field(default_factory=list)


class Cat(BaseModel):
    kind: Literal["cat"] = Field("cat", alias="theKind")


class Dog(BaseModel):
    kind: Literal["dog"] = Field("dog", alias="theKind")
    bone: Inner | None = None


class Page(BaseModel):
    title: str = Field(alias="pageTitle")
    size: int = Field(0, validation_alias="in", serialization_alias="out")
    first: int = Field(0, validation_alias=AliasPath("all", 0))
    other: int = Field(0, validation_alias=AliasChoices("one", "two"))
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] = Field(default_factory=Cat)


class Book(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True, extra="forbid")

    pages: list[Page] = Field([], alias="thePages")
    outer: Outer | None = None
    _cache: dict[str, int] = pydantic.PrivateAttr(default_factory=dict)
    scratch: Any = Field(None, exclude=True)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def length(self) -> int:
        return len(self.pages)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Box(BaseModel, Generic[T]):
    content: T


class Numbers(pydantic.RootModel[dict[str, list[int]]]): ...


def same(kind: type[Any], value: Any) -> bool:
    back = typed.load(kind, typed.dump(kind, value, "state"))
    assert type(back) is type(value)
    return bool(back == value)


@pytest.mark.parametrize(
    "value",
    [
        Outer(),
        Outer(items=[Inner(1), Inner(2)], maybe=Inner(3), by_name={"a": Inner(4)}),
        Outer(by_number={5: [Frozen(NOON, timedelta(days=2, microseconds=3))]}),
        Outer(colour=Colour.BLUE, pair=(1, "a"), many=(Inner(1), Inner(2)), tags=frozenset("ab")),
        Outer(at=datetime(2026, 1, 1, 12, 30, 0, 7, timezone(timedelta(hours=2)))),
        Outer(price=Decimal("1.10"), id=UUID(int=7), raw=b"bytes", score=1),
        Outer(anything={"plain": [1, None, "text"]}),
        Total([1, 2]),
        Node("a", [Node("b", [Node("c")])]),
        Page(pageTitle="t"),
        Page.model_validate({"pageTitle": "t", "in": 7, "all": [8], "two": 9}),
        Page(pageTitle="t", pet=Dog(bone=Inner(3))),
        Book(thePages=[Page(pageTitle="t")], outer=Outer(maybe=Inner(3))),
        Open(a=1, b={"c": [2]}),
        Box[Inner](content=Inner(3)),
        Numbers({"a": [1]}),
    ],
)
def test_what_was_given_comes_back(value: Any) -> None:
    assert same(type(value), value)


def test_what_cannot_be_compared_comes_back_too() -> None:
    book = Book(thePages=[Page(pageTitle="t")], scratch=5)
    book._cache["private"] = 1
    back = typed.load(Book, typed.dump(Book, book, "state"))
    assert (back.pages, back._cache, back.scratch) == (book.pages, {}, None)
    back = typed.load(Nameless, typed.dump(Nameless, Nameless([Inner(3)]), "state"))
    assert back.inner == [Inner(3)]


def test_aliases_are_for_others_and_the_store_has_names() -> None:
    text = typed.dump(Page, Page(pageTitle="t"), "state")
    assert json.decode(text)["title"] == "t"
    assert "pageTitle" not in text


def test_half_a_surrogate_pair_is_mended_as_everywhere() -> None:
    back = typed.load(Node, typed.dump(Node, Node("half \ud800"), "state"))
    assert back == Node("half \ufffd")


@dataclass
class More(Inner):
    y: int = 0


@dataclass
class Settable:
    z: int = field(init=False, default=3)


def settable() -> Settable:
    made = Settable()
    made.z = 9
    return made


class Secret(BaseModel):
    key: pydantic.SecretStr


@pytest.mark.parametrize(
    ("kind", "make", "says"),
    [
        (Inner, lambda: Inner("five"), "x: Input should be a valid integer"),
        (Inner, lambda: Inner("5"), "state.x is '5', but would load as 5"),
        (Inner, lambda: Inner(None), "x: Input should be a valid integer"),
        (Outer, lambda: Outer(score=float("nan")), "score: Input should be a valid number"),
        (Outer, lambda: Outer(items=(Inner(1),)), r"state.items is \(Inner\(x=1\),\), but would"),
        (Outer, lambda: Outer(items=[Inner("a")]), "items.0.x: Input should be a valid integer"),
        (Outer, lambda: Outer(items=[{"x": 1}]), r"state.items\[0\] is {'x': 1}, but would"),
        (Outer, lambda: Outer(maybe={"x": 1}), "state.maybe is {'x': 1}, but would load as I"),
        (Outer, lambda: Outer(by_name={"a": Inner("1")}), r"state.by_name\['a'\].x is '1', but"),
        (Outer, lambda: Outer(by_name={"a": More(1, 2)}), r"state.by_name\['a'\] is More\(x=1"),
        (Outer, lambda: Outer(pair=[1, "a"]), r"state.pair is \[1, 'a'\], but would load"),
        (Outer, lambda: Outer(pair=(1, "a", "b")), "pair.*: "),
        (Outer, lambda: Outer(colour="red"), "state.colour is 'red', but would load as <C"),
        (Outer, lambda: Outer(colour="green"), "colour: Input should be 'red' or 'blue'"),
        (Outer, lambda: Outer(at="2026-05-01T12:00:00Z"), "state.at is '2026-05-01T12:00:00Z',"),
        (Outer, lambda: Outer(anything={1, 2}), r"state.anything is {1, 2}, but would load"),
        (Outer, lambda: Outer(anything=NOON), "state.anything is datetime"),
        (Inner, lambda: More(1, 2), r"state is More\(x=1, y=2\), but would load as Inner"),
        (Settable, settable, "state.z is 9, but would load as 3"),
        (Secret, lambda: Secret(key="s3cret"), "state.key is SecretStr"),
        (Page, lambda: Page.model_construct(size=1), "title: Field required"),
        (Book, lambda: Book.model_construct(pages=5), "pages: Input should be a valid array"),
    ],
)
def test_what_would_not_come_back_as_it_was_is_refused(
    kind: type[Any], make: Callable[[], Any], says: str
) -> None:
    with pytest.raises(ValueError, match=f"^state does not validate as {kind.__name__}: .*{says}"):
        typed.dump(kind, make(), "state")


class Plain: ...


@dataclass
class Unknown:
    what: Missing  # type: ignore[name-defined]  # noqa: F821


def circle() -> Node:
    node = Node("a")
    node.below.append(node)
    return node


@pytest.mark.parametrize(
    ("kind", "make", "says"),
    [
        (Inner, lambda: {"x": 1}, "^state must be a Inner, got dict"),
        (Inner, lambda: Inner, "^state must be a Inner, got type"),
        (Outer, lambda: Outer(anything=object()), "^state cannot be stored: .*object"),
        (Outer, lambda: Outer(raw=b"\xff"), "^state cannot be stored: .*utf-8"),
        (Node, circle, "^state cannot be stored: Circular"),
        (Plain, Plain, "Plain'> cannot be used as the type of the state"),
        (
            Unknown,
            lambda: Unknown(1),
            "Unknown'> cannot be used as the type of the state: .* not fully defined",
        ),
        (None, lambda: Inner(1), "^state is a Inner, which is not JSON"),
        (None, lambda: {"a": [Page(pageTitle="t")]}, r"^state\['a'\]\[0\] is a Page, which is not"),
    ],
)
def test_what_cannot_be_stored_is_refused(
    kind: type[Any] | None, make: Callable[[], Any], says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        typed.dump(kind, make(), "state")


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (Inner, '{"x":1,"gone":2}', Inner(1)),
        (Inner, "{}", Inner(0)),
        (Page, '{"title":"t","gone":1}', Page(pageTitle="t")),
        (Outer, '{"items":[{"x":1,"gone":[]}]}', Outer(items=[Inner(1)])),
        (Inner, '{"x":"5"}', Inner(5)),  # it was a text in an older version
    ],
)
def test_code_moves_on_and_stored_values_come_along(
    kind: type[Any], text: str, expected: Any
) -> None:
    assert typed.load(kind, text) == expected


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (Page, '{"pageTitle":"t"}', "^title: Field required$"),
        (Book, '{"gone":1}', "^gone: Extra inputs are not permitted$"),
        (Outer, '{"pair":[1],"maybe":5}', "^maybe.*: .*; pair.*: "),
        (Inner, "{", "^Invalid JSON"),
        (Inner, "[1]", "."),
    ],
)
def test_what_no_longer_fits_says_why_on_one_line(kind: type[Any], text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        typed.load(kind, text)
    assert "\n" not in str(caught.value)


def test_pydantic_is_loaded_with_the_first_typed_value_and_not_before(tmp_path: Path) -> None:
    code = """
import sys
from dataclasses import dataclass
from outlast.agent.state import typed

@dataclass
class Inner:
    x: int = 0

typed.load(None, typed.dump(None, {"x": 1}, "state"))
assert "pydantic" not in sys.modules
typed.dump(Inner, Inner(1), "state")
assert "pydantic" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
