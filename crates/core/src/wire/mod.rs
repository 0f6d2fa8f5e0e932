//! Messages and their bytes: every schema that Rust encodes or decodes, and the layout constants of
//! regions (wire §6 to §10).

pub mod announce;
pub mod chunk;
pub mod control;
pub mod descriptor;
pub mod driver;
pub mod event;
pub mod fallback_uri;
pub mod hello;
pub mod layout;
pub mod message_cache;
pub mod metadata;
pub mod region_uri;
pub mod status;
