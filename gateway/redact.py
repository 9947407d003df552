"""Takes secrets out of a text before it is shown or written: keys, credentials in URLs, Authorization values."""

from __future__ import annotations

import re

__all__ = ["redact"]

HIDDEN = "[redacted]"

# Each pattern keeps its named group `keep` (what says that a secret stood here) and loses the rest.
_SECRETS = (
    # user:password@ in a URL; a password may hold @, and JSON may write \/ for a slash
    re.compile(r"(?P<keep>\b[a-z][a-z0-9+.\-]*:(?:\\*/){2})[^\s/\"'<>]+(?=@)", re.IGNORECASE),
    # Authorization: Bearer abc, Bearer abc, Basic abc
    re.compile(r"(?P<keep>\b(?:bearer|basic)\s+)[A-Za-z0-9\-._~+/=]{6,}", re.IGNORECASE),
    # api_key=abc, ?key=abc, "token": "abc", x-api-key: abc, password=abc, and \"token\": \"abc\" of JSON within JSON
    re.compile(
        r"(?P<keep>(?:[?&]key|\b(?:x[-_])?api[-_ ]?keys?|\b(?:access|auth|refresh|id|secret)[-_]?(?:token|key)"
        r"|\btoken|\bsecret|\bclient[-_]?secret|\bpasswords?|\bpasswd|\bauthorization|\bcookie|[?&]sig(?:nature)?)"
        r"(?:\\*[\"'])?\s*[:=]\s*(?:\\*[\"'])?)(?!\s|(?:bearer|basic)\s|\[redacted\])[^\s\"'&,;}\])<>]{4,}",
        re.IGNORECASE,
    ),
    # keys that tell by their beginning: OpenAI, ours, Hugging Face, NVIDIA, GitHub, GitLab, Slack, Google, AWS, Groq
    re.compile(
        r"(?P<keep>)(?<![A-Za-z0-9])(?:sk|pk|rk|eh|hf|nvapi|ghp|gho|ghu|ghs|github_pat|glpat|xox[a-z]|AIza|gsk)"
        r"[-_](?=[A-Za-z0-9_\-.*]*[A-Za-z0-9*])[A-Za-z0-9_\-.*]{6,}"
    ),
    re.compile(r"(?P<keep>)\b(?:AIza[A-Za-z0-9_\-]{20,}|AKIA[A-Z0-9]{12,}|hf_[A-Za-z0-9]{10,})"),
    # JSON web tokens
    re.compile(r"(?P<keep>)\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{4,}(?:\.[A-Za-z0-9_\-]*)?"),
)


def redact(text: str) -> str:
    """Give `text` without what looks like a secret. Idempotent; leaves ordinary sentences as they are."""
    for pattern in _SECRETS:
        text = pattern.sub(lambda found: found["keep"] + HIDDEN, text)
    return text
