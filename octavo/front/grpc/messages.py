"""The message classes of ``vllm.proto``, in a pool of their own: nobody else's file of that name gets in the way."""

from pathlib import Path
from typing import Any

from google.protobuf import message_factory, struct_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from octavo.front.grpc import protofile

FILE = "vllm.proto"
SERVICE = "vllm.Generate"

POOL = DescriptorPool()
POOL.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
POOL.AddSerializedFile(
    protofile.read(Path(__file__).with_name(FILE).read_text(encoding="utf-8"), FILE).SerializeToString()
)


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"vllm.{name}"))


GenerateRequest = _class("GenerateRequest")
GenerateResponse = _class("GenerateResponse")
SequenceOutput = _class("SequenceOutput")
PromptInfo = _class("PromptInfo")
FinishInfo = _class("FinishInfo")
