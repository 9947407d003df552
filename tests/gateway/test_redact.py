"""What looks like a secret is taken out of a text, in every spelling, and nothing else is."""

from __future__ import annotations

import json

import pytest

from gateway.redact import redact

SECRET = "C4n4ryC4n4ry99"
SPELLINGS = [
    f"Incorrect API key provided: sk-proj-{SECRET}",
    f"sk-{SECRET[:8]}***********{SECRET[-4:]}",
    f"Authorization: Bearer {SECRET}",
    f"authorization: basic {SECRET}==",
    f"http://user:{SECRET}@host:8000/v1",
    f"http://user:{SECRET}@{SECRET}@host:8000/v1",
    f"http:\\/\\/user:{SECRET}@host:8000\\/v1",
    f"postgres://{SECRET}@host/db",
    f"GET https://host/v1?key={SECRET}&alt=sse",
    f"GET https://host/v1?alt=sse&api_key={SECRET}",
    f'{{"token": "{SECRET}"}}',
    json.dumps(json.dumps({"password": SECRET})),
    json.dumps(json.dumps(json.dumps({"api_key": SECRET}))),
    f"{{'client_secret': '{SECRET}'}}",
    f"x-api-key: {SECRET}",
    f"cookie={SECRET}",
    f"hf_{SECRET}",
    f"eyJ{SECRET}.{SECRET}.{SECRET}",
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_b34_no_spelling_of_a_secret_is_left(text: str) -> None:
    clean = redact(text)
    assert SECRET not in clean and SECRET[:8] not in clean and "[redacted]" in clean
    assert redact(clean) == clean, "twice is once"


@pytest.mark.parametrize(
    "text",
    [
        "The model `m` does not exist here.",
        "`max_tokens` must be an integer of 1 or more, not a string.",
        "tokens: 12, prompt tokens 9",
        "see https://host:8000/v1/models?limit=10",
        "a bearer of news, a basic idea, the key is in the door",
        "mail me@host.example",
        "risk-free, task-oriented, disk_full",
    ],
)
def test_ordinary_sentences_stay_as_they_are(text: str) -> None:
    assert redact(text) == text


def test_what_is_around_a_secret_stays() -> None:
    assert redact(f"GET http://me:{SECRET}@host:80/v1?x=1 failed") == "GET http://[redacted]@host:80/v1?x=1 failed"
