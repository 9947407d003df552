"""The calls that run. Each step computes one batch: the next token of every answer, and as much of new prompts as fits.

Calls share batches, never text: each has a sequence of the model to itself. A call whose client takes nothing has no
credit, and is left out until it has; the others go on. What a sequence held stays there until another call needs the
place, so that a conversation's next turn computes only what is new.
"""

from __future__ import annotations

import time

from engines.embedded_pipe import Alive, Done, Event, Failed, Start, Whole
from engines.embedded_worker.answer import Answer, Chance, encode_embeddings
from engines.embedded_worker.mailbox import Mailbox
from engines.embedded_worker.model import BadCall, Model, ModelError, Part, Sampler
from engines.embedded_worker.wish import Wish, read_wish

__all__ = ["Desk"]


_SIGN_OF_LIFE = 1.0
"""Seconds between two of them."""


class _Running:
    """One answer that is being made.

    `tokens` are the prompt's and the answer's; the sequence holds the first `done` of them. `silent_since`: monotonic.
    """

    def __init__(self, start: Start, wish: Wish, sequence: int, tokens: list[int], done: int, sampler: Sampler) -> None:
        self.id = start.id
        self.stream = start.stream
        self.wish = wish
        self.sequence = sequence
        self.tokens = tokens
        self.done = done
        self.sampler = sampler
        self.silent_since = time.monotonic()
        self.answer = Answer(
            start.kind,
            stream=start.stream,
            stops=wish.stops,
            prompt=len(tokens),
            cached=done,
            logprobs=wish.logprobs is not None,
        )


class Desk:
    """Serves calls, one step after the other.

    Args:
        sequences: of the model, as many as calls may run at once.
    """

    def __init__(self, model: Model, mailbox: Mailbox, sequences: int) -> None:
        self._model = model
        self._mailbox = mailbox
        self._held: list[list[int]] = [[] for _ in range(sequences)]  # the tokens that each sequence holds
        self._running: dict[int, _Running] = {}  # by sequence
        mailbox.on_cancel(lambda: model.interrupt(True))

    def run(self) -> None:
        """Serve for ever; the mailbox ends the process."""
        while True:
            self.step()

    def step(self) -> None:
        """Take what came, compute one batch; waits where there is nothing to compute."""
        ready = self._ready()
        for start in self._mailbox.take(wait=not ready):
            self._begin(start)
        for call in [call for call in self._running.values() if self._mailbox.is_cancelled(call.id)]:
            self._end(call)
            self._mailbox.send(Done(call.id))
        parts = self._parts()
        if parts:
            self._compute(parts)

    def _ready(self) -> list[_Running]:
        """The calls that may go on, in the order in which they came."""
        running = sorted(self._running.values(), key=lambda call: call.id)
        return [call for call in running if not call.stream or self._mailbox.credit(call.id) > 0]

    # -- beginning ---------------------------------------------------------------------------------------------

    def _begin(self, start: Start) -> None:
        try:
            wish = read_wish(start.kind, start.body, self._model.vocabulary)
            if start.kind == "embeddings":
                self._embed(start, wish)
            else:
                self._open(start, wish)
        except BadCall as error:
            self._refuse(start.id, Failed(start.id, error.error, error.message, error.param, error.code))
        except ModelError as error:
            self._refuse(start.id, Failed(start.id, "Faulted", "The engine could not compute.", detail=str(error)))

    def _refuse(self, call: int, failed: Failed) -> None:
        self._mailbox.forget(call)
        self._mailbox.send(failed)

    def _open(self, start: Start, wish: Wish) -> None:
        if wish.messages:
            tokens = self._model.tokenize(self._model.render(wish.messages), special=True)
            param = "messages"
        else:
            prompt, param = wish.prompts[0], "prompt"
            tokens = self._model.tokenize(prompt, special=True) if isinstance(prompt, str) else list(prompt)
        self._check_length(len(tokens), param)
        sampler = self._model.sampler(wish.sampling)
        sequence = self._best_sequence(tokens)
        # At least one token is computed anew, for the first one of the answer comes out of it.
        known = min(_common(self._held[sequence], tokens), len(tokens) - 1)
        if len(self._held[sequence]) > known and not self._model.forget(sequence, known):
            known = 0
        self._held[sequence] = tokens[:known]
        self._running[sequence] = _Running(start, wish, sequence, tokens, known, sampler)

    def _check_length(self, tokens: int, param: str) -> None:
        if tokens == 0:
            raise BadCall(f"`{param}` holds no tokens.", param)
        if tokens >= self._model.context:
            raise BadCall(
                f"This model's maximum context length is {self._model.context} tokens, "
                f"and the request's prompt has {tokens}.",
                param,
                "ContextTooLong",
                "context_length_exceeded",
            )

    def _best_sequence(self, tokens: list[int]) -> int:
        """Of the free ones that which holds most of the prompt; else the one that holds least, to spare the others."""
        free = [number for number in range(len(self._held)) if number not in self._running]
        return max(free, key=lambda number: (_common(self._held[number], tokens), -len(self._held[number])))

    # -- computing ---------------------------------------------------------------------------------------------

    def _parts(self) -> list[Part]:
        """The next batch: answers first, for somebody is reading them; then prompts, the oldest first."""
        room = self._model.batch
        parts = []
        for call in sorted(self._ready(), key=lambda call: len(call.tokens) - call.done > 1):
            count = min(len(call.tokens) - call.done, room)
            if count == 0:
                break
            room -= count
            tokens = call.tokens[call.done : call.done + count]
            parts.append(Part(call.sequence, call.done, tokens, call.done + count == len(call.tokens)))
        return parts

    def _compute(self, parts: list[Part]) -> None:
        calls = [self._running[part.sequence] for part in parts]
        # A single token more is soon computed; a prompt, or what is alone, is broken off when its client leaves.
        breakable = (
            call.id for call, part in zip(calls, parts, strict=True) if len(part.tokens) > 1 or len(parts) == 1
        )
        self._model.interrupt(False)
        if not self._mailbox.interruptible(frozenset(breakable)):
            return  # one was cancelled just now
        try:
            rows = self._model.decode(parts)
        except ModelError as error:
            self._fail(calls, error)
            return
        finally:
            self._mailbox.interruptible(frozenset())
        if rows is None:
            self._roll_back(parts)
            return
        wanted = iter(rows)
        for call, part in zip(calls, parts, strict=True):
            call.done += len(part.tokens)
            self._held[part.sequence] += part.tokens
            if part.row:
                self._advance(call, next(wanted))
            else:
                self._show_life(call)

    def _roll_back(self, parts: list[Part]) -> None:
        """The batch was broken off. What it left in the sequences goes; what it was for is computed again."""
        for part in parts:
            call = self._running[part.sequence]
            if not self._model.forget(part.sequence, part.start):
                call.done = 0
                self._held[part.sequence] = []

    def _fail(self, calls: list[_Running], error: ModelError) -> None:
        for call in calls:
            self._end(call)
            self._model.forget(call.sequence, 0)
            self._held[call.sequence] = []
            self._mailbox.send(Failed(call.id, "Faulted", "The engine could not compute.", detail=str(error)))

    # -- answering ---------------------------------------------------------------------------------------------

    def _advance(self, call: _Running, row: int) -> None:
        """Draw the next token of an answer and say it."""
        token = call.sampler.sample(row)
        if token is None:
            self._finish(call, [], "stop")
            return
        if self._model.is_end(token):
            self._finish(call, call.answer.add(b"", None), "stop")
            return
        chance = self._chance(call, row, token)
        call.tokens.append(token)
        events = call.answer.add(self._model.piece(token), chance)
        full = call.wish.max_tokens is not None and call.answer.tokens >= call.wish.max_tokens
        if call.answer.stopped or full or len(call.tokens) >= self._model.context:
            self._finish(call, events, "length")
        else:
            self._say(call, events)

    def _chance(self, call: _Running, row: int, token: int) -> Chance | None:
        if call.wish.logprobs is None:
            return None
        logprob, top = self._model.logprobs(row, token, call.wish.logprobs)
        piece = self._model.piece
        return piece(token), logprob, [(piece(other), chance) for other, chance in top]

    def _finish(self, call: _Running, events: list[bytes], reason: str) -> None:
        events = events + call.answer.finish(reason)
        self._end(call)
        if call.stream:
            self._mailbox.send(*(Event(call.id, payload) for payload in events), Done(call.id))
        else:
            self._mailbox.send(Whole(call.id, events[-1]), Done(call.id))

    def _say(self, call: _Running, events: list[bytes]) -> None:
        if not call.stream or not events:
            self._show_life(call)
            return
        for _ in events:
            self._mailbox.spend(call.id)
        self._mailbox.send(*(Event(call.id, payload) for payload in events))

    def _show_life(self, call: _Running) -> None:
        """A long silence would look like a hang."""
        now = time.monotonic()
        if now - call.silent_since >= _SIGN_OF_LIFE:
            call.silent_since = now
            self._mailbox.send(Alive(call.id))

    def _end(self, call: _Running) -> None:
        """Take the call out. Its sequence keeps what it holds."""
        del self._running[call.sequence]
        call.sampler.close()
        self._mailbox.forget(call.id)

    # -- embeddings --------------------------------------------------------------------------------------------

    def _embed(self, start: Start, wish: Wish) -> None:
        prompts = [
            self._model.tokenize(prompt, special=False) if isinstance(prompt, str) else prompt
            for prompt in wish.prompts
        ]
        for tokens in prompts:
            self._check_length(len(tokens), "input")
        vectors = []
        for tokens in prompts:
            self._model.interrupt(False)
            going_on = self._mailbox.interruptible(frozenset({start.id}))
            vector = self._model.embed(tokens) if going_on else None
            self._mailbox.interruptible(frozenset())
            if vector is None:
                break
            vectors.append(vector)
            self._mailbox.send(Alive(start.id))
        cancelled = self._mailbox.is_cancelled(start.id)
        self._mailbox.forget(start.id)
        if not cancelled:
            answer = encode_embeddings(vectors, sum(map(len, prompts)), as_base64=wish.base64)
            self._mailbox.send(Whole(start.id, answer))
        self._mailbox.send(Done(start.id))


def _common(held: list[int], tokens: list[int]) -> int:
    """How many tokens the two begin with alike."""
    count = 0
    for one, other in zip(held, tokens, strict=False):
        if one != other:
            break
        count += 1
    return count
