"""A chat page of your own: React, `useAgentChat`, and an agent behind it.

npm ci && npm run build         makes dist/
uvicorn app:web                 serves the page and the agent at http://127.0.0.1:8000

npm run dev                     instead of the build, while you write it: Vite beside the server
"""

from __future__ import annotations

import os
from pathlib import Path

from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from outlast import App, Think, tool
from outlast.demo.model import EmbeddedModel

DIST = Path(os.environ.get("DIST", Path(__file__).parent / "dist"))


class Assistant(Think):
    model = EmbeddedModel(pace=float(os.environ.get("PACE", "0.1")))

    @tool(needs_approval=True)
    async def delete_files(self, folder: str) -> str:
        """Delete the files in a folder. (It only says so.)"""
        return f"deleted what was in {folder}"


async def index(_: object) -> FileResponse:
    return FileResponse(DIST / "index.html")


agents = App(agents=[Assistant], store=os.environ.get("STORE", "sqlite:///react.db"))
web = Starlette(
    lifespan=agents.lifespan,
    routes=[
        Route("/", index),
        Mount("/assets", StaticFiles(directory=DIST / "assets", check_dir=False)),
        Mount("/", agents),
    ],
)
