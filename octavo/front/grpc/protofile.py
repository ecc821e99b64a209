"""The part of proto3 that ``vllm.proto`` is written in, as a ``FileDescriptorProto``.

Read at start instead of generated ahead: generated code is pinned to the protobuf release that made it.
"""

import re
from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

_TOKEN = re.compile(r'"[^"]*"|[\w.]+|[^\s\w]')
_COMMENT = re.compile(r"//[^\n]*")
_SCALARS = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("bool", "float", "int32", "int64", "string", "uint32")
}


def read(text: str, name: str) -> FileDescriptorProto:
    """The descriptor of a file called ``name``. Anything but the subset fails an assertion."""
    return _Reader(text, name).file


class _Reader:
    def __init__(self, text: str, name: str):
        self._tokens = iter(_TOKEN.findall(_COMMENT.sub("", text)))
        self.file = FileDescriptorProto(name=name, syntax="proto3")
        for word in self._tokens:
            match word:
                case "syntax":
                    self._expect("=", '"proto3"', ";")
                case "package":
                    self.file.package = self._until(";")[0]
                case "import":
                    self.file.dependency.append(self._until(";")[0].strip('"'))
                case "message":
                    self._message(self.file.message_type.add())
                case "service":
                    self._service()
                case _:
                    raise AssertionError(f"{name}: {word!r} is not read here")
        enums = set(self._enums(self.file.message_type, "." + self.file.package))
        for message in self.file.message_type:
            self._resolve(message, "." + self.file.package, enums)

    def _expect(self, *words: str) -> None:
        for word in words:
            found = next(self._tokens)
            assert found == word, f"{word!r} was expected, not {found!r}"

    def _until(self, end: str) -> list[str]:
        return list(iter(lambda: next(self._tokens), end))

    def _service(self) -> None:
        service = self.file.service.add(name=next(self._tokens))
        self._expect("{")
        while (word := next(self._tokens)) != "}":
            assert word == "rpc"
            name, _, asked, _, _, _, *streamed, told, _ = self._until(";")
            package = "." + self.file.package
            service.method.add(
                name=name,
                input_type=f"{package}.{asked}",
                output_type=f"{package}.{told}",
                server_streaming=bool(streamed),
            )

    def _message(self, message: DescriptorProto) -> None:
        message.name = next(self._tokens)
        self._expect("{")
        optional: list[FieldDescriptorProto] = []
        while (word := next(self._tokens)) != "}":
            match word:
                case "message":
                    self._message(message.nested_type.add())
                case "enum":
                    self._enum(message)
                case "oneof":
                    place = len(message.oneof_decl)
                    message.oneof_decl.add(name=next(self._tokens))
                    self._expect("{")
                    while (kind := next(self._tokens)) != "}":
                        self._field(message, kind).oneof_index = place
                case "map":
                    self._map(message)
                case "repeated":
                    self._field(message, next(self._tokens)).label = FieldDescriptorProto.LABEL_REPEATED
                case "optional":
                    optional.append(self._field(message, next(self._tokens)))
                case _:
                    self._field(message, word)
        for field in optional:  # a oneof of its own for each, behind the real ones
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name="_" + field.name)

    def _enum(self, message: DescriptorProto) -> None:
        enum = message.enum_type.add(name=next(self._tokens))
        self._expect("{")
        while (word := next(self._tokens)) != "}":
            _, number = self._until(";")
            enum.value.add(name=word, number=int(number))

    def _field(self, message: DescriptorProto, kind: str) -> FieldDescriptorProto:
        name, _, number = self._until(";")
        field = message.field.add(name=name, number=int(number), label=FieldDescriptorProto.LABEL_OPTIONAL)
        if kind in _SCALARS:
            field.type = _SCALARS[kind]
        else:
            field.type_name = kind
        return field

    def _map(self, message: DescriptorProto) -> None:
        _, key, _, value, _, name, _, number = self._until(";")
        entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        for place, (part, kind) in enumerate((("key", key), ("value", value)), 1):
            entry.field.add(name=part, number=place, type=_SCALARS[kind], label=FieldDescriptorProto.LABEL_OPTIONAL)
        message.field.add(
            name=name, number=int(number), label=FieldDescriptorProto.LABEL_REPEATED, type_name=entry.name
        )

    def _enums(self, messages, scope: str) -> Iterator[str]:
        for message in messages:
            inside = f"{scope}.{message.name}"
            yield from (f"{inside}.{enum.name}" for enum in message.enum_type)
            yield from self._enums(message.nested_type, inside)

    def _resolve(self, message: DescriptorProto, scope: str, enums: set[str]) -> None:
        """Full names of types, and whether each is a message or an enum."""
        inside = f"{scope}.{message.name}"
        nested = {one.name for one in message.nested_type} | {one.name for one in message.enum_type}
        for field in message.field:
            if not field.type_name:
                continue
            if field.type_name in nested:
                field.type_name = f"{inside}.{field.type_name}"
            else:
                package = "" if "." in field.type_name else "." + self.file.package
                field.type_name = f"{package}.{field.type_name}"
            field.type = (
                FieldDescriptorProto.TYPE_ENUM if field.type_name in enums else FieldDescriptorProto.TYPE_MESSAGE
            )
        for one in message.nested_type:
            self._resolve(one, inside, enums)
