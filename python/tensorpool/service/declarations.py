"""Declarations of a service: properties and commands as members of a class.

class Heater(Service, name="heater"):
    temperature = Property(20.0, minimum=0.0, maximum=250.0, doc="Degrees Celsius to hold.")

    @command
    def run(self, minutes: int) -> str:
        "Starts a programme."
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NotRequired, TypedDict, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from ..errors import RequestRejected
from ..text import JsonMapping, JsonValue
from .events import Value, encode_value

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_NUMBER_TYPES = (int, float)


class PropertyDescription(TypedDict):
    """A property in the reply to `describe()`."""

    type: str
    doc: str
    writable: bool
    minimum: NotRequired[Any]
    maximum: NotRequired[Any]
    choices: NotRequired[Any]


class CommandDescription(TypedDict):
    """A command in the reply to `describe()`."""

    parameters: list[str]
    doc: str
    needs_token: bool
    reads: bool


class Property(Generic[T]):
    """A typed value of a service that clients read, and may set within its limits.

    An assignment in the service publishes the new value on the status stream.
    """

    def __init__(
        self,
        default: T,
        *,
        doc: str = "",
        minimum: T | None = None,
        maximum: T | None = None,
        choices: tuple[T, ...] | None = None,
        writable: bool = True,
    ) -> None:
        if isinstance(default, np.generic):
            default = default.item()
        self.default = default
        self.type = type(default)
        self.doc = doc
        self.minimum = minimum
        self.maximum = maximum
        self.choices = choices
        self.writable = writable
        self.name = ""
        encode_value(cast(Value, default))

    def __set_name__(self, owner: type, name: str) -> None:
        if not name.isascii():
            raise TypeError(f"property {name!r}: keys of events are ASCII; use an ASCII name")
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Property[T]: ...
    @overload
    def __get__(self, instance: Any, owner: type) -> T: ...
    def __get__(self, instance: Any, owner: type) -> Property[T] | T:
        if instance is None:
            return self
        return cast(T, instance._values.get(self.name, self.default))

    def __set__(self, instance: Any, value: T) -> None:
        """Assigns in the service: checks the value like a client's, and publishes a change."""
        instance._assign(self, self.check(value))

    def check(self, value: Any) -> T:
        """The value in the property's type. Raises RequestRejected with the reason."""
        if isinstance(self.default, np.ndarray):
            return cast(T, self._check_array(value, self.default))
        if self.type is float and type(value) in _NUMBER_TYPES:
            value = float(value)
        elif self.type is not type(value):
            raise RequestRejected(f"{self.name} takes {self.type.__name__}, not {type(value).__name__}")
        if self.choices is not None and value not in self.choices:
            raise RequestRejected(
                f"{self.name} is one of {', '.join(map(repr, self.choices))}, not {value!r}"
            )
        if self.minimum is not None and not value >= self.minimum:
            raise RequestRejected(f"{self.name} is at least {self.minimum}, not {value!r}")
        if self.maximum is not None and not value <= self.maximum:
            raise RequestRejected(f"{self.name} is at most {self.maximum}, not {value!r}")
        return cast(T, value)

    def _check_array(self, value: Any, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The value as an array of the default's element type. A plain number is an array of one element."""
        array = np.atleast_1d(np.asarray(value))
        if not np.can_cast(array.dtype, like.dtype, "same_kind"):
            raise RequestRejected(f"{self.name} takes elements of {like.dtype}, not {array.dtype}")
        low, high = cast(Any, self.minimum), cast(Any, self.maximum)
        if low is not None and not (array >= low).all():
            raise RequestRejected(f"the elements of {self.name} are at least {low}")
        if high is not None and not (array <= high).all():
            raise RequestRejected(f"the elements of {self.name} are at most {high}")
        return array.astype(like.dtype)

    def description(self) -> PropertyDescription:
        """The entry of the property in the result of `describe()`."""
        described: PropertyDescription = {
            "type": self.type.__name__,
            "doc": self.doc,
            "writable": self.writable,
        }
        if self.minimum is not None:
            described["minimum"] = _plain(self.minimum)
        if self.maximum is not None:
            described["maximum"] = _plain(self.maximum)
        if self.choices is not None:
            described["choices"] = _plain(self.choices)
        return described


def _plain(value: Any) -> Any:
    """The value in JSON types."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else repr(value)


@dataclass(frozen=True, slots=True)
class Command:
    """A method that clients may call."""

    name: str
    """Its name."""
    method: Callable[..., Any]
    """The function that is called."""
    doc: str
    """Its docstring, which `describe` sends."""
    needs_token: bool
    """Whether a caller has to know the token of the service."""
    reads: bool
    """Whether it changes nothing."""
    signature: inspect.Signature
    """Names, types and defaults of its arguments."""

    def bind(self, service: Any, arguments: JsonMapping) -> inspect.BoundArguments:
        """The arguments of the method. Raises RequestRejected if they do not match its signature."""
        try:
            return self.signature.bind(service, **arguments)
        except TypeError as error:
            raise RequestRejected(f"{self.name}(): {error}") from None

    def description(self) -> CommandDescription:
        """The entry of the command in the result of `describe()`."""
        # Postponed annotations are text with quotes.
        parameters = [str(p).replace("'", "") for p in list(self.signature.parameters.values())[1:]]
        return {
            "parameters": parameters,
            "doc": self.doc,
            "needs_token": self.needs_token,
            "reads": self.reads,
        }


@overload
def command(method: F) -> F: ...
@overload
def command(*, needs_token: bool = False, reads: bool = False) -> Callable[[F], F]: ...
def command(
    method: F | None = None, *, needs_token: bool = False, reads: bool = False
) -> F | Callable[[F], F]:
    """Marks a method as a command.

    `needs_token`: the command is dangerous, so a call must have the token. `reads`: the command changes
    nothing, and the record of accepted commands says so.
    """

    def mark(method: F) -> F:
        if "token" in inspect.signature(method).parameters:
            raise TypeError(
                f"{method.__name__}(): the parameter name token is reserved for the service; rename it"
            )
        method.__tensorpool_command__ = Command(  # type: ignore[attr-defined]
            method.__name__,
            method,
            inspect.getdoc(method) or "",
            needs_token,
            reads,
            inspect.signature(method),
        )
        return method

    return mark if method is None else mark(method)


def parse_arguments(value: Value) -> dict[str, JsonValue]:
    """The arguments of a call, from its JSON object; an empty value has no arguments."""
    if value is None:
        return {}
    # The type is compared first: numpy raises where an array is compared with text.
    if not isinstance(value, str):
        raise RequestRejected(f"a command takes its arguments as JSON text, not {type(value).__name__}")
    if not value:
        return {}
    try:
        arguments = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RequestRejected(f"the arguments are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise RequestRejected('the arguments must be a JSON object, as in {"path": "/data"}')
    return arguments
