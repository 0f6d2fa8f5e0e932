"""What users may rely on: the names of the package, its errors, the words of its counters."""

from __future__ import annotations

import inspect
import re

import tensorpool as tp
from tensorpool import _native, errors
from tensorpool.client.ledger import DROP_REASONS, Outcome

# Every public name. A change here is a change for users: say so in the changelog.
PUBLIC = {
    "AmbiguousStream",
    "AttachError",
    "ClaimRefused",
    "ClosedError",
    "CodecError",
    "CommandFailed",
    "ConfigError",
    "Consumer",
    "ConsumerLedger",
    "Context",
    "DiscoveryError",
    "DriverAlreadyRunning",
    "Event",
    "ForkedError",
    "Frame",
    "FrameOverwritten",
    "InvalidConfig",
    "Latency",
    "LockHeld",
    "MediaDriver",
    "MediaDriverBusy",
    "MediaDriverError",
    "MediaDriverUnavailable",
    "Metadata",
    "NoProvider",
    "NoSuchService",
    "Offered",
    "Outcome",
    "Phase",
    "Producer",
    "ProducerLedger",
    "Progress",
    "Property",
    "ReceiveTimeout",
    "RegionCreateError",
    "RegionRejected",
    "RequestRejected",
    "RoleFailed",
    "Service",
    "ServiceError",
    "ServiceTimeout",
    "Slot",
    "StreamBusy",
    "StreamNotLocal",
    "DiscoveredStream",
    "StreamIds",
    "StreamNotFound",
    "TensorPoolError",
    "UnsupportedDtype",
    "__version__",
    "command",
    "discover",
    "discover_async",
    "open",
    "record",
    "replay",
    "service",
}


def test_the_public_names_are_exactly_these() -> None:
    assert set(tp.__all__) == PUBLIC
    assert list(tp.__all__) == sorted(
        tp.__all__, key=lambda name: (name[0].islower() or name[0] == "_", name)
    )


def test_every_public_name_exists_and_says_what_it_is_for() -> None:
    for name in tp.__all__:
        thing = getattr(tp, name)
        if (
            inspect.isclass(thing)
            and thing.__module__.startswith("tensorpool")
            and "_native" not in thing.__module__
        ):
            assert inspect.getdoc(thing), name


def test_nothing_else_is_public_in_the_package() -> None:
    modules = {name for name, thing in vars(tp).items() if inspect.ismodule(thing)}
    others = {name for name in vars(tp) if not name.startswith("_")} - modules - PUBLIC
    assert others == set()


def all_errors() -> list[type[Exception]]:
    return [
        thing
        for thing in vars(errors).values()
        if inspect.isclass(thing) and issubclass(thing, errors.TensorPoolError)
    ]


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    drawn = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"(?P<lead>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: \((?P<also>\w+)\))?", line):
            depth = len(match["lead"]) // 4
            if depth == 0 and match["name"] != "TensorPoolError":
                continue
            path[depth:] = [match["name"]]
            drawn[match["name"]] = (path[depth - 1] if depth else None, match["also"])
    real = {}
    for error in all_errors():
        parents = [base.__name__ for base in error.__bases__ if issubclass(base, errors.TensorPoolError)]
        others = [base.__name__ for base in error.__bases__ if not issubclass(base, errors.TensorPoolError)]
        real[error.__name__] = (
            parents[0] if parents else None,
            others[0] if others and others != ["Exception"] else None,
        )
    assert drawn == real


def test_every_reason_for_a_drop_has_a_name_of_its_own_and_a_meaning() -> None:
    names = [name for name, _, _ in _native.drop_reasons()]
    assert len(set(names)) == len(names)
    assert list(DROP_REASONS) == names
    for name, meaning in DROP_REASONS.items():
        assert re.fullmatch(r"[a-z_]+", name)
        assert re.fullmatch(r"[A-Z].+\.", meaning), name
    meanings = list(DROP_REASONS.values())
    assert len(set(meanings)) == len(meanings)


def test_the_reasons_that_belong_to_no_mapped_epoch_are_these() -> None:
    outside = {name for name, _, in_span in _native.drop_reasons() if not in_span}
    assert outside == {"epoch", "unmapped", "duplicate", "regressed", "malformed"}


def test_every_outcome_of_an_offer_is_a_word() -> None:
    assert [str(outcome) for outcome in Outcome] == [
        "published",
        "deferred",
        "back_pressured",
        "not_connected",
        "closed",
        "no_pool",
        "slot_claimed",
        "detached",
    ]
    assert Outcome("no_pool") is Outcome.NO_POOL
