"""The way to Triton over gRPC: requests built from its protobufs, one cancellable stream for each.

The client library's own stream cannot ask for the empty final response, without which a decoupled model's stream has
no end mark, and it can hold one stream at a time. So the calls are made on `grpc.aio` itself.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, Final, Self

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as stubs

from engines.contract import Headers, Health
from engines.errors import EngineError, Lost, Malformed, Refused, Unreached
from engines.triton_errors import from_code, from_text, says_unavailable
from engines.triton_layout import ModelInfo, Tensor
from engines.triton_wire import Replies, Reply, Request, pack, unpack
from engines.upstream import Upstream

__all__ = ["GrpcTransport", "translated"]

_FINAL: Final = "triton_final_response"
_DRAIN_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 1.0
# What gRPC itself says of a connection, under codes that Triton uses as well.
_LOCAL: Final = re.compile(
    r"stream removed|socket closed|connection (?:reset|refused|attempt|closed)|broken pipe|recvmsg|sendmsg|goaway|"
    r"rst_stream|failed to connect|failed to pick|keepalive|endpoint clos|channel clos|"
    r"internal error from core|dns resolution|handshake",
    re.IGNORECASE,
)
_TOO_LARGE: Final = re.compile(r"received message larger than max", re.IGNORECASE)
_CODES: Final = (("triton_grpc_error", "true"),)
"""Asks Triton to end a failing call with a gRPC status, instead of a text without a code."""


class GrpcTransport:
    """See `Transport`.

    Args:
        address: `host:port`. secure: TLS, against `ca` (a PEM file) or the system's authorities.
        headers: to go with every call. connect: seconds. max_message: bytes, in either direction.

    Attributes:
        max_message: see above.
    """

    def __init__(
        self, address: str, *, secure: bool, ca: str | None, headers: Headers, connect: float, max_message: int
    ) -> None:
        self._address = address
        self._credentials = None
        if secure:
            roots = Path(ca).read_bytes() if ca is not None else None
            self._credentials = grpc.ssl_channel_credentials(root_certificates=roots)
        self._headers = tuple(headers)
        self._connect = connect
        self.max_message = max_message
        self._options = [
            ("grpc.max_send_message_length", max_message),
            ("grpc.max_receive_message_length", max_message),
            ("grpc.enable_retries", 0),  # whether a call may run again is decided above
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
        ]
        self._channel: Any = None
        self._stub: Any = None
        self._closed = False
        self._upstream = Upstream(f"http://{address}")  # for its closer look at lost connections; no HTTP is spoken

    async def models(self) -> list[str]:
        index = await self._unary("RepositoryIndex", pb.RepositoryIndexRequest(ready=True))
        return [model.name for model in index.models]

    async def describe(self, model: str) -> ModelInfo:
        metadata = await self._unary("ModelMetadata", pb.ModelMetadataRequest(name=model))
        config = (await self._unary("ModelConfig", pb.ModelConfigRequest(name=model))).config
        parameters = {name: value.string_value for name, value in config.parameters.items()}
        return ModelInfo(
            name=model,
            inputs=tuple(Tensor(one.name, one.datatype, tuple(one.shape)) for one in metadata.inputs),
            outputs=tuple(Tensor(one.name, one.datatype, tuple(one.shape)) for one in metadata.outputs),
            platform=metadata.platform,
            max_batch_size=config.max_batch_size,
            decoupled=config.model_transaction_policy.decoupled,
            steps=tuple(step.model_name for step in config.ensemble_scheduling.step),
            parameters={name: value for name, value in parameters.items() if value and not value.startswith("${")},
        )

    async def health(self, model: str | None) -> Health:
        if not (await self._unary("ServerReady", pb.ServerReadyRequest())).ready:
            return Health("loading", "the server is up and not ready")
        if model is not None and not (await self._unary("ModelReady", pb.ModelReadyRequest(name=model))).ready:
            return Health("loading", "the server is up, its model is not ready")
        return Health("ready")

    def infer(self, request: Request) -> Replies:
        return _Stream(self, request)

    async def settle(self, error: EngineError) -> EngineError:
        return await self._upstream.settle(error)

    async def aclose(self) -> None:
        self._closed = True
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close()
        await self._upstream.aclose()

    async def connected(self) -> Any:
        """The service, over a connection that stands. Raises Unreached."""
        if self._closed:
            raise Unreached("The endpoint was taken out of service.")
        if self._channel is None:
            if self._credentials is not None:
                self._channel = grpc.aio.secure_channel(self._address, self._credentials, options=self._options)
            else:
                self._channel = grpc.aio.insecure_channel(self._address, options=self._options)
            self._stub = stubs.GRPCInferenceServiceStub(self._channel)
        channel, stub = self._channel, self._stub
        try:
            async with asyncio.timeout(self._connect):
                await _until_ready(channel)
        except TimeoutError:
            raise Unreached("The engine could not be reached: no connection in time.") from None
        return stub

    async def _unary(self, method: str, request: Any) -> Any:
        stub = await self.connected()
        try:
            return await getattr(stub, method)(request, metadata=self._headers)
        except grpc.aio.AioRpcError as error:
            raise translated(error) from error

    @property
    def headers(self) -> Headers:
        return self._headers


async def _until_ready(channel: Any) -> None:
    """Return when the channel is connected.

    A channel that failed before says so until it is connected again, whatever it tries meanwhile. It tries at least
    every half second, so one that does not make it within a second is refused by the engine's side.
    """
    state = channel.get_state(try_to_connect=True)
    failed = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
    try:
        async with asyncio.timeout(_RETRY_SECONDS if failed else None):
            while state is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not failed:
                    raise Unreached("The engine could not be reached: no connection.")
                if state is grpc.ChannelConnectivity.SHUTDOWN:
                    raise Unreached("The endpoint was taken out of service.")
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        raise Unreached("The engine could not be reached: no connection.") from None


class _Stream:
    """One inference. See `Replies`."""

    def __init__(self, transport: GrpcTransport, request: Request) -> None:
        self._transport = transport
        self._request = request
        self._call: Any = None
        self._flagged = False  # some response said whether it was the last
        self._final = False
        self._over = False
        self.sent = False

    async def __aenter__(self) -> Self:
        message = _message(self._request)
        if message.ByteSize() > self._transport.max_message:  # gRPC itself would call it an internal error
            raise Refused("The request is larger than the endpoint's limit.", status=413)
        stub = await self._transport.connected()
        metadata = (*self._transport.headers, *self._request.headers, *_CODES)
        self._call = stub.ModelStreamInfer(metadata=metadata)
        try:
            self.sent = True
            await self._call.write(message)
            await self._call.done_writing()
        except grpc.aio.AioRpcError as error:
            raise translated(error) from error
        except BaseException:
            self.cancel()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._final and not self._over:
            # It has said everything: its formal end is near. Cancelled now, it would look like a cancelled request.
            try:
                async with asyncio.timeout(_DRAIN_SECONDS):
                    await self._call.read()
            except (TimeoutError, grpc.aio.AioRpcError):
                pass  # what was to be said of this answer has been said
        self.cancel()

    async def next(self) -> Reply | None:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            self._over = True
            raise translated(error) from error
        if message is grpc.aio.EOF:
            self._over = True
            if self._flagged:
                raise Lost("The engine's stream ended without its final response.")
            return None  # a release that knows no final flag ends the stream when all is sent
        if message.error_message:
            raise from_text(message.error_message)
        response = message.infer_response
        if _FINAL in response.parameters:
            self._flagged = True
            self._final = response.parameters[_FINAL].bool_param
        return Reply(_values(response), self._final)

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()


def _message(request: Request) -> Any:
    message = pb.ModelInferRequest(model_name=request.model, id=request.id)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for filled in request.inputs:
        message.inputs.add(name=filled.name, datatype=filled.datatype, shape=filled.shape)
        message.raw_input_contents.append(pack(filled))
    for name in request.outputs:
        message.outputs.add(name=name)
    return message


def _values(response: Any) -> dict[str, Any]:
    """The first element of each output. A final response may have none."""
    if len(response.raw_output_contents) < len(response.outputs):
        raise Malformed("The engine sent outputs without their contents.")
    values: dict[str, Any] = {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        value = unpack(output.datatype, raw)
        if value is not None:
            values[output.name] = value
    return values


def translated(error: Any) -> EngineError:
    """The error of a call: what Triton said, or what became of the connection."""
    code, details = error.code().name, error.details() or ""
    if _TOO_LARGE.search(details):
        return Malformed("The engine sent a message over the endpoint's limit.", detail=details)
    own = code in ("UNAVAILABLE", "INTERNAL", "UNKNOWN", "CANCELLED") and _LOCAL.search(details) is not None
    if not own and (code != "UNAVAILABLE" or says_unavailable(details)):
        return from_code(code, details)
    return Lost("The connection to the engine broke.", detail=f"{code}: {details}")
