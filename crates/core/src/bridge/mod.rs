//! Rules of a bridge receiver: assemblies, the source's layout, the session's ledger (bridge §5 to §9). Pure.

pub mod assembly;
pub mod session_ledger;
pub mod source;
