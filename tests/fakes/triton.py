"""A fake of Triton's gRPC side, for what a real one (see `tests/real`) cannot be made to do on demand.

It speaks with tritonclient's own protobufs over a real socket. What it answers to an inference is a script; without one
it streams `text` in pieces, as TensorRT-LLM's decoupled models do, and ends with an empty final response.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as stubs

__all__ = ["CLASSIC", "FakeTriton", "Peer", "Script"]

CLASSIC: dict[str, tuple[str, list[int]]] = {
    "text_input": ("BYTES", [-1, 1]),
    "max_tokens": ("INT32", [-1, 1]),
    "stop_words": ("BYTES", [-1, -1]),
    "exclude_input_in_output": ("BOOL", [-1, 1]),
    "top_k": ("INT32", [-1, 1]),
    "top_p": ("FP32", [-1, 1]),
    "temperature": ("FP32", [-1, 1]),
    "seed": ("UINT64", [-1, 1]),
    "return_num_input_tokens": ("BOOL", [-1, 1]),
    "return_num_output_tokens": ("BOOL", [-1, 1]),
    "stream": ("BOOL", [-1, 1]),
}
"""Inputs of an `ensemble` of a recent release, with the batch dimension."""

OUTPUTS = {"text_output": "BYTES", "num_input_tokens": "INT32", "num_output_tokens": "INT32"}

_FORMATS = {"INT32": "<i", "FP32": "<f", "UINT64": "<Q", "BOOL": "<?"}


class Peer:
    """One inference, as a script sees it.

    Attributes:
        request: the message that came. metadata: of the call. inputs: their values; text as bytes.
    """

    def __init__(self, fake: FakeTriton, request: Any, context: Any) -> None:
        self.fake = fake
        self.request = request
        self.context = context
        self.metadata = dict(context.invocation_metadata())
        self.inputs = {
            tensor.name: _read(tensor.datatype, raw)
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        self.parameters = {name: value.bool_param for name, value in request.parameters.items()}

    async def send(self, text: bytes | None = None, final: bool | None = False, tokens: int = 1) -> None:
        """One response. `final` None: from a release that knows no such flag."""
        response = pb.ModelInferResponse(model_name=self.request.model_name, id=self.request.id)
        if final is not None:
            response.parameters["triton_final_response"].bool_param = final
        if text is not None:
            values = {"text_output": struct.pack("<I", len(text)) + text}
            values |= {"num_input_tokens": struct.pack("<i", 7), "num_output_tokens": struct.pack("<i", tokens)}
            for name, raw in values.items():
                response.outputs.add(name=name, datatype=OUTPUTS[name], shape=[1])
                response.raw_output_contents.append(raw)
        await self.context.write(pb.ModelStreamInferResponse(infer_response=response))

    async def error(self, text: str) -> None:
        """An error in words alone, in a message."""
        await self.context.write(pb.ModelStreamInferResponse(error_message=text))

    async def abort(self, code: str, text: str) -> None:
        """End the call with a status."""
        await self.context.abort(getattr(grpc.StatusCode, code), text)

    async def pause(self) -> None:
        """Say that the script has come this far, and stop until the gate opens."""
        self.fake.paused.set()
        await self.fake.gate.wait()


Script = Callable[[Peer], Awaitable[None]]


class FakeTriton(stubs.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The fake, on a free port, while it is entered.

    Attributes:
        text, piece: of the answer without a script: bytes of a response. inputs: the model's, by name.
        peers: the inferences that came. cancelled: set when one was cancelled by its caller. paused, gate: see `Peer`.
        ready: what health questions are answered; described: how often the model's metadata was asked for.
    """

    def __init__(self, text: str = "Hello there", piece: int = 2, script: Script | None = None) -> None:
        self.text = text
        self.piece = piece
        self.script = script
        self.inputs = dict(CLASSIC)
        self.parameters: dict[str, str] = {}
        self.names = ["ensemble"]
        self.peers: list[Peer] = []
        self.cancelled = asyncio.Event()
        self.paused = asyncio.Event()
        self.gate = asyncio.Event()
        self.ready = self.model_ready = True
        self.described = 0
        self.port = 0
        self._server: Any = None

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gate.set()
        await self.die()

    async def listen(self) -> None:
        """Serve, on the port that it had where it had one."""
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.aio.server(options=options)
        stubs.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def die(self) -> None:
        """Close everything at once."""
        await self._server.stop(None)

    # -- the service ---------------------------------------------------------------------------------------------

    async def ServerReady(self, request: Any, context: Any) -> Any:
        return pb.ServerReadyResponse(ready=self.ready)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return pb.ModelReadyResponse(ready=self.model_ready)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        index = pb.RepositoryIndexResponse()
        for name in self.names:
            index.models.add(name=name, state="READY")
        return index

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        self.described += 1
        answer = pb.ModelMetadataResponse(name=request.name, platform="python")
        for name, (datatype, shape) in self.inputs.items():
            answer.inputs.add(name=name, datatype=datatype, shape=shape)
        for name, datatype in OUTPUTS.items():
            answer.outputs.add(name=name, datatype=datatype, shape=[-1, 1])
        return answer

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        answer = pb.ModelConfigResponse()
        answer.config.name = request.name
        answer.config.max_batch_size = 8
        answer.config.model_transaction_policy.decoupled = True
        for name, value in self.parameters.items():
            answer.config.parameters[name].string_value = value
        return answer

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> None:
        request = await anext(aiter(requests))
        peer = Peer(self, request, context)
        self.peers.append(peer)
        try:
            await (self.script or self._stream)(peer)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def _stream(self, peer: Peer) -> None:
        data = self.text.encode()
        cuts = [data[at : at + self.piece] for at in range(0, len(data), self.piece)]
        if not peer.inputs.get("stream"):
            await peer.send(data, tokens=len(cuts))
        else:
            for cut in cuts[: peer.inputs["max_tokens"]]:
                await peer.send(cut)
        await peer.send(final=True)


def _read(datatype: str, raw: bytes) -> Any:
    if datatype != "BYTES":
        return struct.unpack_from(_FORMATS[datatype], raw)[0]
    (length,) = struct.unpack_from("<I", raw)
    return raw[4 : 4 + length]
