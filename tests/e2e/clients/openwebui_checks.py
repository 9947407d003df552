"""Sends a gateway what Open WebUI sends to an "OpenAI API" connection, written from its public sources and manual.

    python openwebui_checks.py BASE_URL MODEL [--key KEY] [--refuses FEATURE,...] [--only NAME ...]

Open WebUI is a server: it speaks aiohttp to the connection, and passes streams on as they come. Its older versions,
its direct connections and its filters leave fields in the body with which it tells its own server about a chat.
Prints `ok name`, `skip name: why` or `FAIL name: why` per check; the exit code is the number of failures.
"""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

from checks import PAINT, PIXEL, WEATHER, House, Skip, main, proper  # beside this script

Json = dict[str, Any]

USER = {
    "X-OpenWebUI-User-Name": "Anna%20M%C3%BCller",
    "X-OpenWebUI-User-Id": "5b0c6a7e-93c5-4a3e-8f5e-0d6f0f4f1c11",
    "X-OpenWebUI-User-Email": "anna@example.org",
    "X-OpenWebUI-User-Role": "user",
    "X-OpenWebUI-Chat-Id": "0b5e4f2a-0f0c-4c3f-9a43-0b9e1b7f7a10",
}
"""What ENABLE_FORWARD_USER_INFO_HEADERS adds."""

OWN_FIELDS: Json = {
    "chat_id": "0b5e4f2a-0f0c-4c3f-9a43-0b9e1b7f7a10",
    "session_id": "Zq8vS5nJ3kQeAAAB",
    "id": "f3c1d9f0-6a5b-4c55-8a3e-2f4a3a1b9c77",
    "parent_id": "a8e5b1c2-7d0e-4d5a-9f36-1b2c3d4e5f60",
    "params": {},
    "tool_ids": ["web_tools"],
    "tool_servers": [],
    "filter_ids": [],
    "files": None,
    "features": {"image_generation": False, "code_interpreter": False, "web_search": False, "memory": True},
    "variables": {"{{USER_NAME}}": "Anna", "{{CURRENT_DATE}}": "2026-11-30"},
    "model_item": {"id": "m", "name": "m", "object": "model", "owned_by": "openai", "urlIdx": 0},
    "background_tasks": {"title_generation": True, "tags_generation": True, "follow_up_generation": True},
    "metadata": {"user_id": "5b0c6a7e", "chat_id": "0b5e4f2a", "interface": "open-webui", "task": None},
}
"""With which it tells its own server about a chat."""

TITLE = (
    "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.\n"
    '### Output:\nJSON format: { "title": "your concise title here" }\n'
    "### Chat History:\n<chat_history>\nUSER: Name three colours.\nASSISTANT: Red, green, blue.\n</chat_history>"
)


class Refusal(Exception):
    """An answer with another status than 200, read as Open WebUI reads it."""

    def __init__(self, status: int, body: bytes) -> None:
        # `detail = f"External: {res['error']['message']}"`, from JSON that has an `error`.
        self.status = status
        self.error: Json = json.loads(body)["error"]
        super().__init__(f"{status}: {self.error['message']}")


def said(error: BaseException) -> tuple[int | None, str | None]:
    return (error.status, error.error["param"]) if isinstance(error, Refusal) else (None, None)


@contextmanager
def asked(house: House, method: str, path: str, body: Json | None = None, **headers: str) -> Iterator[Any]:
    """The answer to one request on a connection of its own. Raises Refusal."""
    where = urlsplit(house.base_url)
    sent = {"Authorization": f"Bearer {house.key}", "Content-Type": "application/json", "Accept": "*/*"} | headers
    with closing(http.client.HTTPConnection(where.hostname or "", where.port, timeout=120)) as connection:
        data = None if body is None else json.dumps(body)
        connection.request(method, f"{where.path}{path}", data, sent)
        answer = connection.getresponse()
        if answer.status != 200:
            raise Refusal(answer.status, answer.read())
        yield answer


def whole(house: House, body: Json, **headers: str) -> Json:
    """A chat without a stream."""
    with asked(house, "POST", "/chat/completions", body, **headers) as answer:
        assert answer.headers.get_content_type() == "application/json", answer.headers
        found: Json = json.loads(answer.read())
        return found


def streamed(house: House, body: Json, **headers: str) -> list[Json]:
    """The chunks of a streamed chat."""
    with asked(house, "POST", "/chat/completions", body, **headers) as answer:
        # By this Open WebUI tells a stream from a whole answer, whatever it asked for.
        assert "text/event-stream" in answer.headers["Content-Type"], answer.headers
        lines = [line.decode().rstrip("\r\n") for line in answer]
    # It reads line by line, and drops what does not begin so.
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]" and data.count("[DONE]") == 1, data[-2:]
    return [json.loads(each) for each in data[:-1]]


def text_of(chunks: list[Json]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def chat(house: House, **changes: Any) -> Json:
    """What the chat of its page sends: no cap and no temperature unless the user sets them."""
    body: Json = {"stream": True, "model": house.model, "messages": house.chat()["messages"], "max_tokens": 24}
    return body | changes


def check_models(house: House) -> None:
    with asked(house, "GET", "/models") as answer:
        listed = json.loads(answer.read())
    assert listed["object"] == "list" and house.model in [model["id"] for model in listed["data"]], listed
    for model in listed["data"]:
        assert model["object"] == "model" and isinstance(model["created"], int) and model["owned_by"], model
    with asked(house, "GET", "/models", **USER) as answer:
        assert json.loads(answer.read()) == listed


def check_connection_without_a_key(house: House) -> None:
    if house.keyed:
        raise Skip("the gateway has keys")
    for bearer in ("Bearer ", "Bearer"):
        with asked(house, "GET", "/models", Authorization=bearer) as answer:
            assert answer.status == 200


def check_wrong_key(house: House) -> None:
    if not house.keyed:
        raise Skip("the gateway has no keys")
    with house.raises(Refusal, 401), asked(house, "GET", "/models", Authorization="Bearer sk-wrong"):
        pass


def check_chat_as_the_page_sends_it(house: House) -> None:
    chunks = streamed(house, chat(house))
    proper(text_of(chunks))
    assert all(chunk["choices"] for chunk in chunks), "a chunk without choices came unasked"
    assert {chunk["model"] for chunk in chunks} == {house.model}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] in ("stop", "length"), chunks[-1]


def check_chat_with_usage(house: House) -> None:
    chunks = streamed(house, chat(house, stream_options={"include_usage": True}))
    proper(text_of(chunks))
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] > 0, chunks[-1]


def check_users_headers(house: House) -> None:
    proper(text_of(streamed(house, chat(house), **USER)))


def check_own_fields_of_open_webui(house: House) -> None:
    body = chat(house, **OWN_FIELDS)
    proper(text_of(streamed(house, body)))
    proper(whole(house, body | {"stream": False})["choices"][0]["message"]["content"])


def check_settings_of_a_chat(house: House) -> None:
    settings = {
        "temperature": 0.8,
        "top_p": 0.9,
        "seed": 42,
        "stop": ["zzzz"],
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
    }
    proper(text_of(streamed(house, chat(house, **settings))))


def check_system_prompt_and_history(house: House) -> None:
    messages = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": [{"type": "text", "text": "Name three colours, please."}]},
    ]
    proper(text_of(streamed(house, chat(house, messages=messages))))


def check_title_generation(house: House) -> None:
    body = {
        "model": house.model,
        "messages": [{"role": "user", "content": TITLE}],
        "stream": False,
        "max_completion_tokens": 40,
        "metadata": {"task": "title_generation", "task_body": {"model": house.model}, "chat_id": "0b5e4f2a"},
    }
    answer = whole(house, body)
    proper(answer["choices"][0]["message"]["content"])
    assert answer["object"] == "chat.completion" and answer["usage"]["total_tokens"] > 0, answer


def check_json_schema(house: House) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "paint", "strict": True, "schema": PAINT}}
    with house.may_refuse("json_schema"):
        answer = whole(house, chat(house, stream=False, response_format=wanted, max_tokens=120))
        assert json.loads(answer["choices"][0]["message"]["content"]).keys() == PAINT["properties"].keys(), answer


def check_native_tools(house: House) -> None:
    with house.may_refuse("tools"):
        chunks = streamed(house, chat(house, tools=[WEATHER]))
        calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls") or ()]
        assert text_of(chunks) or calls, chunks


def check_native_tools_called_and_answered(house: House) -> None:
    with house.may_refuse("tools", "tool_choice"):
        other = {"type": "function", "function": {**WEATHER["function"], "name": "time_of_day"}}
        body = chat(house, tools=[WEATHER, other], tool_choice="required", max_tokens=120)
        # It joins the deltas by their `index`, and adds `arguments` to `arguments`.
        calls: dict[int, Json] = {}
        chunks = streamed(house, body)
        for delta in (call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls") or ()):
            call = calls.setdefault(delta["index"], {"id": delta.get("id"), "type": "function", "function": {}})
            for name, text in delta["function"].items():
                call["function"][name] = call["function"].get(name, "") + text
        assert calls and list(calls) == list(range(len(calls))), calls
        for call in calls.values():
            assert call["id"] and call["function"]["name"] in ("weather", "time_of_day"), call
            assert json.loads(call["function"]["arguments"]).keys() == {"city"}, call
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls", chunks[-1]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "It rains."} for call in calls.values()]
        turn = {"role": "assistant", "content": "", "tool_calls": list(calls.values())}
        messages = [*house.chat()["messages"], turn, *results]
        chunks = streamed(house, chat(house, tools=[WEATHER, other], messages=messages))
        proper(text_of(chunks))


def check_image_as_data_url(house: House) -> None:
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    with house.may_refuse("images"):
        proper(text_of(streamed(house, chat(house, messages=[{"role": "user", "content": parts}]))))


def check_unknown_model(house: House) -> None:
    for stream in (True, False):
        with house.raises(Refusal, 404, "model") as found:
            whole(house, chat(house, model="no-such-model", stream=stream))
        assert found[0].error["code"] == "model_not_found", found[0].error


def check_bad_parameter(house: House) -> None:
    for stream in (True, False):
        with house.raises(Refusal, 400, "temperature"):
            whole(house, chat(house, temperature=3.5, stream=stream))


def check_stopped_answer_frees_the_engine(house: House) -> None:
    # The user presses stop: Open WebUI closes its own connection.
    with asked(house, "POST", "/chat/completions", chat(house, **house.endless)) as answer:
        for line in answer:
            event = line.decode().removeprefix("data: ")
            if event.startswith("{") and json.loads(event)["choices"][0]["delta"].get("content"):
                break
    house.wait_until_idle()


if __name__ == "__main__":
    sys.exit(main(__doc__, globals(), said))
