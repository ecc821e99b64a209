"""HTTP: routes are thin, no engine logic. The only room that knows starlette, FastAPI and uvicorn."""
