"""The command line of EngineArgs: argparse from the fields, configuration files, errors that name the nearest flag."""

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from octavo.common.words import nearest
from octavo.config import foreign
from octavo.config.args import EngineArgs
from octavo.errors import ConfigError

T = TypeVar("T", bound=EngineArgs)


class Parser(argparse.ArgumentParser):
    """argparse that fails with one sentence and, for an unknown flag, names the nearest known one (exit status 2)."""

    #: Whether its flags are those of an engine: then those of others that octavo has none of may stand among them.
    engine = False

    def __init__(self, **options: Any):
        super().__init__(allow_abbrev=False, **options)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        given = [_dashed(word) for word in (sys.argv[1:] if args is None else args)]
        parsed, unknown = self.parse_known_args(given, namespace)
        if unknown:
            name = unknown[0].partition("=")[0]
            what = "flag" if name.startswith("-") else "argument"
            self.error(f"unknown {what} {name}{nearest(name, self._flags(parsed))}")
        return parsed

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        words = list(sys.argv[1:] if args is None else args)
        if self.engine:
            try:
                words = foreign.without(words, self._option_string_actions)
            except ConfigError as error:
                self.error(str(error))
        return super().parse_known_args(words, namespace)

    def _flags(self, parsed: argparse.Namespace) -> list[str]:
        """Every flag, those of the chosen subcommand included."""
        found = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                chosen = action.choices.get(getattr(parsed, action.dest, ""))
                found += chosen._flags(parsed) if isinstance(chosen, Parser) else []
        return found

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = action.metavar or action.dest
            known = [str(choice) for choice in action.choices]
            hint = nearest(str(value), known)
            raise argparse.ArgumentError(None, f"unknown {name} {value!r}{hint}; known: {', '.join(known)}")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def _dashed(word: str) -> str:
    """--max_model_len=3 -> --max-model-len=3."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def add_flags(parser: Parser, cls: type[EngineArgs], skip: Sequence[str] = ()) -> None:
    """A flag for each field of ``cls``, in its group. Values stay texts; ``ask`` turns them into the fields' types."""
    parser.engine = True
    groups: dict[str, Any] = {}
    for spec in fields(cls):
        if spec.name in skip:
            continue
        group = groups.setdefault(spec.metadata["group"], None) or parser.add_argument_group(spec.metadata["group"])
        groups[spec.metadata["group"]] = group
        names = ["--" + name.replace("_", "-") for name in (spec.name, *spec.metadata["alias"])]
        names += [spec.metadata["short"]] if "short" in spec.metadata else []
        group.add_argument(
            *names, dest=spec.name, default=None, help=spec.metadata["help"].replace("%", "%%"), **_options(spec)
        )


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL, by place or by flag; ``one_model`` reads it."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="directory, GGUF file or hub name")
    parser.add_argument("-m", "--model", dest="model_flag", metavar="MODEL", help="the same, as a flag")


def one_model(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> None:
    """Make ``parsed.model`` the one that was given. Ends the program where two were."""
    if parsed.model_flag is not None:
        if parsed.model not in (None, parsed.model_flag):
            parser.error(f"the model is given twice: {parsed.model!r} and --model {parsed.model_flag!r}")
        parsed.model = parsed.model_flag


def _options(spec: Field) -> dict[str, Any]:
    kind = str(spec.type)
    if "bool" in kind:
        negatable = spec.metadata.get("negatable", True)
        return {"action": argparse.BooleanOptionalAction if negatable else "store_true"}
    if spec.metadata["choices"]:
        return {"metavar": "{" + ",".join(spec.metadata["choices"]) + "}"}
    return {"metavar": spec.metadata.get("metavar", "VALUE"), "nargs": "+" if "list" in kind else None}


def ask(cls: type[T], parsed: argparse.Namespace) -> T:
    """The arguments of a parsed command line, over those of its ``--config`` file. Raises ``ConfigError``."""
    file = getattr(parsed, "config", None)
    said = cls.of(read_file(Path(file)), "configuration key") if file else cls()
    given = {spec.name: getattr(parsed, spec.name, None) for spec in fields(cls)}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in vars(_flags(cls, given)).items():
        if value is not None:
            setattr(said, name, value)
    return said


def _flags(cls: type[T], given: Mapping[str, Any]) -> T:
    try:
        return cls.of(given, "flag")
    except ConfigError as error:
        dashed = {repr(name): "--" + name.replace("_", "-") for name in given}
        message = str(error)
        for name, flag in dashed.items():
            message = message.replace(f"flag {name}", f"flag {flag}")
        raise ConfigError(message) from None


def read_file(path: Path) -> dict[str, Any]:
    """A configuration file: YAML, JSON or TOML by its ending; keys are flags without the dashes before them."""
    try:
        text = path.read_text(encoding="utf-8")
        match path.suffix:
            case ".json":
                found = json.loads(text)
            case ".toml":
                found = tomllib.loads(text)
            case ".yaml" | ".yml":
                import yaml  # comes with huggingface-hub; only here is it needed

                found = yaml.safe_load(text)
            case other:
                raise ConfigError(f"configuration file {path} ends in {other!r}; possible: .yaml, .json, .toml")
    except OSError as error:
        raise ConfigError(f"configuration file {path} cannot be read: {error.strerror}") from None
    except ConfigError:
        raise
    except Exception as error:  # each format's library has its own errors
        raise ConfigError(f"configuration file {path} is not valid: {str(error).splitlines()[0]}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"configuration file {path} must hold keys and values, not a {type(found).__name__}")
    return found
