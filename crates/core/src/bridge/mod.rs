//! Rules of a bridge: assemblies, sealed messages, the source's layout, the session's ledger (bridge §5 to §9).
//! Pure.

pub mod assembly;
pub mod seal;
pub mod session_ledger;
pub mod source;
