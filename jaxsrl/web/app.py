"""Routes of the page: its static files, data of runs as JSON, and requests to runs. Only known runs and listed files."""

import importlib.resources
import json
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from envpool_bridge.errors import UserError
from jaxsrl.runs import control
from jaxsrl.runs.population import find_populations, read_population
from jaxsrl.web.checkpoints import Checkpoints
from jaxsrl.web.local_only import LocalOnly
from jaxsrl.web.run_files import RunFiles, finite
from jaxsrl.web.runs import Runs

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_MAX_COMPARED = 16
_MAX_BODY_BYTES = 4096
_BYTES_PER_RESPONSE = 16 << 20  # records read for one response: about two seconds


def make_app(runs: Runs, token: str) -> LocalOnly:
    """Returns the page of `runs`, under `/TOKEN/`.

    Handlers read files. They are plain functions, because starlette calls those in threads.
    """
    page = _Page(runs)
    routes = [
        Route("/", page.index),
        Route("/static/{name}", page.static),
        Route("/api/runs", page.list_runs),
        Route("/api/records", page.records),
        Route("/api/population", page.population),
        Route("/api/details", page.of_run(lambda run, _: _Json(run.details()))),
        Route("/api/checkpoints", page.of_run(page.checkpoints)),
        Route("/api/control", page.control, methods=["POST"]),
        Route("/api/plan.svg", page.of_run(_plan)),
        Route("/video", page.of_run(_video)),
    ]
    return LocalOnly(Starlette(routes=[Mount("/{token}", routes=routes)]), token)


class _Json(JSONResponse):
    """JSON in ASCII: names of files and metrics may hold what UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class _Page:
    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._checkpoints = Checkpoints()
        directory = importlib.resources.files("jaxsrl.web") / "static"
        self._files = {
            file.name: (file.read_bytes(), _TYPES[suffix])
            for file in directory.iterdir()
            if (suffix := "." + file.name.rpartition(".")[2]) in _TYPES
        }

    def index(self, request: Request) -> Response:
        return self._file("index.html")

    def static(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    def list_runs(self, request: Request) -> Response:
        """Lists all runs; `unread` bytes of records are left for the next responses."""
        summaries: list[dict[str, Any]] = []
        unread, budget = 0, _BYTES_PER_RESPONSE
        for name, run in self._runs.all().items():
            before, problem = run.records.num_bytes, ""
            try:
                unread += run.records.refresh(max(0, budget))
            except UserError as error:
                problem = str(error)
            budget -= run.records.num_bytes - before
            summaries.append({**run.summary(name), "problem": problem})
        populations = list(find_populations(self._runs.root))
        listing = {"root": str(self._runs.root), "runs": summaries, "num_runs": self._runs.num_found}
        return _Json({**listing, "populations": populations, "unread": unread})

    def population(self, request: Request) -> Response:
        """Returns the population `name=NAME` of the root."""
        path = find_populations(self._runs.root).get(request.query_params.get("name", ""))
        if path is None:
            return _not_found("there is no such population here")
        try:
            return _Json(finite(read_population(path)))
        except UserError as error:
            return _not_found(str(error))

    def records(self, request: Request) -> Response:
        """Returns new rows of several runs: `run=NAME@CURSOR`, once for each; `problem` of one whose files cannot be read."""
        rows: dict[str, Any] = {}
        for requested in request.query_params.getlist("run")[:_MAX_COMPARED]:
            name, _, cursor = requested.rpartition("@")
            run = self._runs.get(name)
            if run is None:
                continue
            try:
                run.records.refresh(_BYTES_PER_RESPONSE)
                rows[name] = run.rows_since(cursor)
            except (UserError, OSError) as error:
                rows[name] = {"problem": str(error)}
        return _Json(rows)

    def checkpoints(self, run: RunFiles, request: Request) -> Response:
        return _Json(self._checkpoints.of(run.path))

    async def control(self, request: Request) -> Response:
        """Sends a request to a run, as `jaxsrl control` does, and returns its answer, or why it rejects the request."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MAX_BODY_BYTES:
                return PlainTextResponse("the request is too long\n", 413)
        try:
            data = json.loads(body)
            order = control.Request(str(data["action"]), str(data["name"]), float(data["value"]))
            run = self._runs.get(data["run"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return PlainTextResponse("expected JSON with run, action, name and value\n", 400)
        if run is None:
            return _not_found("there is no such run here")
        try:
            answer = await run_in_threadpool(control.send_request, run.path, order)
        except UserError as error:
            return _Json({"error": str(error)})
        return _Json(finite({"text": answer.text, "status": answer.status}))

    def of_run(self, answer: Callable[[RunFiles, Request], Response]) -> Callable[[Request], Response]:
        """Returns a handler that finds the run of `?run=NAME`."""

        def handler(request: Request) -> Response:
            run = self._runs.get(request.query_params.get("run", ""))
            return answer(run, request) if run is not None else _not_found("there is no such run here")

        return handler

    def _file(self, name: str) -> Response:
        if name not in self._files:
            return _not_found("there is no such file")
        content, kind = self._files[name]
        return Response(content, media_type=kind)


def _plan(run: RunFiles, request: Request) -> Response:
    svg = run.plan_svg()
    if svg is None:
        return _not_found("this run has no plan.json that this version of jaxsrl can read")
    return Response(svg, media_type="image/svg+xml")


def _video(run: RunFiles, request: Request) -> Response:
    name = request.query_params.get("name", "")
    if name not in [video["name"] for video in run.videos()]:
        return _not_found("there is no such video in this run")
    return FileResponse(run.path / name, media_type="video/mp4")


def _not_found(why: str) -> Response:
    return PlainTextResponse(why + "\n", 404)
