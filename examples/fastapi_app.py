"""Agents in a FastAPI application, with its own routes and its own users.

uvicorn examples.fastapi_app:api
curl -H 'authorization: Bearer alice-token' localhost:8000/me
outlast chat Assistant alice -H 'authorization: Bearer alice-token'
"""

from __future__ import annotations

import os
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from starlette.requests import HTTPConnection

from outlast import App, Think
from outlast.demo.model import EmbeddedModel

TOKENS = {"Bearer alice-token": "alice", "Bearer bob-token": "bob"}  # yours: sessions, JWTs, …


class Assistant(Think):
    model = EmbeddedModel(pace=float(os.environ.get("PACE", "0.1")))


def who(connection: HTTPConnection) -> str | None:
    """Of requests and of handshakes, for FastAPI's routes and for the agents'."""
    return TOKENS.get(connection.headers.get("authorization", ""))


def may(user: str, address: Any, action: str) -> bool:
    """Everybody has one agent, which is called as they are."""
    return address is not None and address.root.name == user


agents = App(
    agents=[Assistant],
    store=os.environ.get("STORE", "sqlite:///fastapi.db"),
    auth=who,
    authorize=may,
)
api = FastAPI(lifespan=agents.lifespan)


def user(connection: HTTPConnection) -> str:
    if (found := who(connection)) is None:
        raise HTTPException(401)
    return found


@api.get("/me")
async def me(user: Annotated[str, Depends(user)]) -> dict[str, Any]:
    """A route of yours may use agents, too."""
    messages = await agents.host.get(Assistant, user).get_messages()
    return {"user": user, "messages": len(messages)}


@api.post("/ask")
async def ask(question: str, user: Annotated[str, Depends(user)]) -> dict[str, str]:
    """A question that is answered whatever happens to this process: it is durable when this returns."""
    submission = await agents.host.get(Assistant, user).submit_messages(question)
    return {"submission": submission.id}


api.mount("/", agents)  # last, for it takes every path that is left
