"""The public surface: names of the package, errors, drop reasons and outcomes."""

from __future__ import annotations

import inspect
import re

import tensorpool as tp
from tensorpool import _native, errors
from tensorpool.client.ledger import DROP_REASONS, Outcome

# Every public name. A change here is a change for users and needs a line in the changelog.
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
    "DeviceError",
    "DiscoveryError",
    "DriverAlreadyRunning",
    "Event",
    "ForkedError",
    "Frame",
    "FrameBatch",
    "FrameChangedWarning",
    "FrameOverwritten",
    "InvalidConfig",
    "Join",
    "JoinLedger",
    "JoinRejected",
    "JoinedBatch",
    "JoinedFrames",
    "Latency",
    "Limiter",
    "LockHeld",
    "MergeMapJoin",
    "MediaDriver",
    "MediaDriverBusy",
    "MediaDriverError",
    "MediaDriverUnavailable",
    "MergeMap",
    "Metadata",
    "NoProvider",
    "NoSuchService",
    "OfferManyResult",
    "OfferRefused",
    "OfferResult",
    "OfferWarning",
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
    "Stage",
    "StreamBusy",
    "StreamNotLocal",
    "DiscoveredStream",
    "StreamIds",
    "StreamNotFound",
    "TensorPoolError",
    "UnsupportedDtype",
    "WholeFrame",
    "__version__",
    "command",
    "discover",
    "discover_async",
    "open",
    "record",
    "replay",
    "service",
    "stage",
}


def test_dir_lists_names_that_are_not_imported_yet() -> None:
    """Completion in a shell and in notebooks reads it."""
    assert set(dir(tp)) >= PUBLIC


def test_public_names_are_exactly_these() -> None:
    assert set(tp.__all__) == PUBLIC
    assert list(tp.__all__) == sorted(
        tp.__all__, key=lambda name: (name[0].islower() or name[0] == "_", name)
    )


def test_every_public_class_has_a_docstring() -> None:
    for name in tp.__all__:
        value = getattr(tp, name)
        if (
            inspect.isclass(value)
            and value.__module__.startswith("tensorpool")
            and "_native" not in value.__module__
        ):
            assert inspect.getdoc(value), name


def test_package_has_no_other_public_names() -> None:
    modules = {name for name, value in vars(tp).items() if inspect.ismodule(value)}
    others = {name for name in vars(tp) if not name.startswith("_")} - modules - PUBLIC
    assert others == set()


def all_errors() -> list[type[Exception]]:
    return [
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.TensorPoolError)
    ]


def test_error_tree_in_the_docstring_matches_the_classes() -> None:
    documented = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"(?P<lead>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: \((?P<also>\w+)\))?", line):
            depth = len(match["lead"]) // 4
            if depth == 0 and match["name"] != "TensorPoolError":
                continue
            path[depth:] = [match["name"]]
            documented[match["name"]] = (path[depth - 1] if depth else None, match["also"])
    actual = {}
    for error in all_errors():
        parents = [base.__name__ for base in error.__bases__ if issubclass(base, errors.TensorPoolError)]
        others = [base.__name__ for base in error.__bases__ if not issubclass(base, errors.TensorPoolError)]
        actual[error.__name__] = (
            parents[0] if parents else None,
            others[0] if others and others != ["Exception"] else None,
        )
    assert documented == actual


def test_every_drop_reason_has_a_unique_name_and_meaning() -> None:
    names = [reason.name for reason in _native.drop_reasons()]
    assert len(set(names)) == len(names)
    assert list(DROP_REASONS) == names
    for name, meaning in DROP_REASONS.items():
        assert re.fullmatch(r"[a-z_]+", name)
        assert re.fullmatch(r"[A-Z].+\.", meaning), name
    meanings = list(DROP_REASONS.values())
    assert len(set(meanings)) == len(meanings)


def test_drop_reasons_outside_a_span_are_exactly_these() -> None:
    outside = {reason.name for reason in _native.drop_reasons() if not reason.is_in_span}
    assert outside == {"epoch", "unmapped", "before_joining", "duplicate", "regressed", "malformed"}


def test_outcomes_of_an_offer_are_exactly_these() -> None:
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
