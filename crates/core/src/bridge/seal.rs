//! Sealed messages of a bridge: encrypted and authenticated with a key that both ends have (AES-256-GCM).
//! Pure.
//!
//! A sealed message is a prefix, the message and a tag. The prefix starts like an SBE header, so that
//! programs without a key skip it by its schema id; it names the key, the sealing host, the session and the
//! counter. Each publication is a session with a random number, and has a key of its own, derived from the
//! shared key, the session and the purpose of the stream. So no nonce is used twice, and a message of one
//! stream is invalid on another.
//!
//! The counter is the time of sealing in nanoseconds, and grows within a session. A receiver accepts each
//! counter once, and none that is older than those it remembers: large messages have an Aeron session of
//! their own, so messages of a publication may arrive out of order. It rejects times that differ too much
//! from its own clock, so that a session that was recorded earlier cannot be sent again to a receiver that
//! has not seen it.
//!
//! Both directions between two hosts may have one key. A receiver rejects what its own host has sealed, so a
//! message cannot be sent back to its sender.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hkdf};

use crate::wire::chunk::Fault;
use crate::wire::layout::*;

pub const KEY_BYTES: usize = 32;
/// Keys that are accepted at the same time: the one in use, and others while keys are changed.
pub const MAX_KEYS: usize = 4;
pub const SEALED_SCHEMA_ID: u16 = 922;
pub const SEALED_SCHEMA_VERSION: u16 = 1;
pub const SEALED_TEMPLATE_ID: u16 = 1;
const BLOCK_LENGTH: u16 = 28;
const KEY_ID: usize = MESSAGE_HEADER_LENGTH;
const ORIGIN: usize = KEY_ID + 4;
const SESSION: usize = ORIGIN + 8;
const COUNTER: usize = SESSION + 8;
/// Bytes before the message.
pub const PREFIX_BYTES: usize = MESSAGE_HEADER_LENGTH + BLOCK_LENGTH as usize;
const TAG_BYTES: usize = 16;
/// What is hashed before a key, so that its id is no other hash of the key.
const KEY_ID_CONTEXT: &[u8] = b"tensorpool bridge key id";
/// The context of a session's key, with the version of the derivation; the purpose of the stream follows.
const SESSION_KEY_CONTEXT: &[u8] = b"tensorpool bridge 1 ";
/// Bytes that sealing adds to a message.
pub const SEAL_BYTES: usize = PREFIX_BYTES + TAG_BYTES;
/// Sessions of one stream that a receiver remembers.
const MAX_SESSIONS: usize = 64;
/// Counters of a session that are remembered, for messages that come out of order.
const MAX_COUNTERS: usize = 1024;
/// A message that is so much older than the first one of its session is not accepted: a receiver that joins
/// late cannot know whether it was replayed.
const MAX_REORDER_NS: u64 = 1_000_000_000;
/// So far counters may be ahead of the clock: many messages in one moment take counters of moments to come.
const MAX_AHEAD_NS: u64 = 1_000_000_000;

/// What a stream carries. A message that was sealed for one purpose is invalid for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Payload,
    Control,
    Metadata,
}

impl Purpose {
    pub const ALL: [Self; 3] = [Self::Payload, Self::Control, Self::Metadata];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Payload => "payload",
            Self::Control => "control",
            Self::Metadata => "metadata",
        }
    }
}

struct Key {
    id: u32,
    bytes: [u8; KEY_BYTES],
}

/// The accepted keys. The first one seals.
pub struct SharedKeys {
    keys: RwLock<Arc<Vec<Key>>>,
    version: AtomicU64,
    /// A number of the host that seals with them: the same for all its bridges, and another at the other end.
    origin: u64,
}

/// A number that names a key without revealing it.
pub fn key_id(key: &[u8; KEY_BYTES]) -> u32 {
    let mut context = digest::Context::new(&digest::SHA256);
    context.update(KEY_ID_CONTEXT);
    context.update(key);
    get_u32(context.finish().as_ref(), 0)
}

fn with_ids(keys: &[[u8; KEY_BYTES]]) -> Arc<Vec<Key>> {
    Arc::new(keys.iter().take(MAX_KEYS).map(|bytes| Key { id: key_id(bytes), bytes: *bytes }).collect())
}

impl SharedKeys {
    /// The keys of a host with the number `origin`. `None` without a key.
    pub fn new(keys: &[[u8; KEY_BYTES]], origin: u64) -> Option<Self> {
        (!keys.is_empty()).then(|| Self {
            keys: RwLock::new(with_ids(keys)),
            version: AtomicU64::new(0),
            origin,
        })
    }

    /// Replaces the keys. Sealers change to the new first key with their next message.
    pub fn replace(&self, keys: &[[u8; KEY_BYTES]]) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = with_ids(keys);
        self.version.fetch_add(1, Ordering::Release);
    }

    fn get(&self) -> Arc<Vec<Key>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }
}

struct AesKeyLength;

impl hkdf::KeyType for AesKeyLength {
    fn len(&self) -> usize {
        KEY_BYTES
    }
}

/// The key of one session.
fn session_key(key: &Key, session: u64, purpose: Purpose) -> Option<LessSafeKey> {
    let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, &session.to_le_bytes()).extract(&key.bytes);
    let info = [SESSION_KEY_CONTEXT, purpose.as_str().as_bytes()];
    let mut bytes = [0; KEY_BYTES];
    extracted.expand(&info, AesKeyLength).ok()?.fill(&mut bytes).ok()?;
    UnboundKey::new(&AES_256_GCM, &bytes).ok().map(LessSafeKey::new)
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Seals the messages of one publication.
pub struct Sealer {
    keys: Arc<SharedKeys>,
    purpose: Purpose,
    version: u64,
    key_id: u32,
    session: u64,
    counter: u64,
    aead: LessSafeKey,
}

impl Sealer {
    /// A new session. `None` if the system has no random numbers.
    pub fn new(keys: Arc<SharedKeys>, purpose: Purpose) -> Option<Self> {
        let version = keys.version();
        let mut bytes = [0; 8];
        SystemRandom::new().fill(&mut bytes).ok()?;
        let session = u64::from_le_bytes(bytes);
        let all = keys.get();
        let key = all.first()?;
        let (key_id, aead) = (key.id, session_key(key, session, purpose)?);
        Some(Self { keys, purpose, version, key_id, session, counter: 0, aead })
    }

    /// Begins a new session if the keys were replaced, or if the clock was set back: the counters would stay
    /// ahead of it, and receivers would take all messages for stale.
    pub fn update(&mut self, now_ns: u64) {
        if (self.keys.version() != self.version || self.counter > now_ns.saturating_add(MAX_AHEAD_NS))
            && let Some(next) = Self::new(self.keys.clone(), self.purpose)
        {
            *self = next;
        }
    }

    /// Seals the message between prefix and tag in place. `bytes` is `SEAL_BYTES` longer than the message.
    /// False: it could not be sealed, and must not be sent.
    #[inline]
    pub fn seal(&mut self, bytes: &mut [u8], now_ns: u64) -> bool {
        self.counter = now_ns.max(self.counter + 1);
        let (prefix, rest) = bytes.split_at_mut(PREFIX_BYTES);
        put_header_of(prefix, BLOCK_LENGTH, SEALED_TEMPLATE_ID, SEALED_SCHEMA_ID, SEALED_SCHEMA_VERSION);
        put_u32(prefix, KEY_ID, self.key_id);
        put_u64(prefix, ORIGIN, self.keys.origin);
        put_u64(prefix, SESSION, self.session);
        put_u64(prefix, COUNTER, self.counter);
        let (message, tag) = rest.split_at_mut(rest.len() - TAG_BYTES);
        let sealed = self.aead.seal_in_place_separate_tag(nonce(self.counter), Aad::from(&*prefix), message);
        match sealed {
            Ok(computed) => tag.copy_from_slice(computed.as_ref()),
            Err(_) => return false,
        }
        true
    }

    /// A sealed copy of a message.
    pub fn seal_message(&mut self, message: &[u8], now_ns: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; message.len() + SEAL_BYTES];
        bytes[PREFIX_BYTES..PREFIX_BYTES + message.len()].copy_from_slice(message);
        self.seal(&mut bytes, now_ns).then_some(bytes)
    }
}

/// Whether a message is sealed, with whatever key.
#[inline]
pub fn is_sealed(bytes: &[u8]) -> bool {
    bytes.len() >= MESSAGE_HEADER_LENGTH
        && get_u16(bytes, MESSAGE_HEADER_SCHEMA_ID) == SEALED_SCHEMA_ID
        && get_u16(bytes, MESSAGE_HEADER_TEMPLATE_ID) == SEALED_TEMPLATE_ID
}

struct Session {
    key_id: u32,
    session: u64,
    last: u64,
    counters: Counters,
    aead: LessSafeKey,
}

/// Counters of a session that were accepted: each is accepted once.
///
/// The messages of a publication may arrive over more than one Aeron session, which keep no order between
/// them. So a counter below the last one is accepted too, unless it is as old as all those remembered.
#[derive(Default)]
struct Counters {
    /// Ascending.
    recent: VecDeque<u64>,
    /// Everything up to here is taken to be known.
    floor: u64,
}

impl Counters {
    #[inline]
    fn is_known(&self, counter: u64) -> bool {
        counter <= self.floor
            || self.recent.back().is_some_and(|last| counter <= *last)
                && self.recent.binary_search(&counter).is_ok()
    }

    #[inline]
    fn add(&mut self, counter: u64) {
        if self.recent.is_empty() {
            self.floor = self.floor.max(counter.saturating_sub(MAX_REORDER_NS));
        }
        match self.recent.back() {
            Some(last) if counter < *last => {
                let at = self.recent.partition_point(|known| *known < counter);
                self.recent.insert(at, counter);
            }
            _ => self.recent.push_back(counter),
        }
        if self.recent.len() > MAX_COUNTERS
            && let Some(oldest) = self.recent.pop_front()
        {
            self.floor = oldest;
        }
    }
}

/// Opens the sealed messages of one stream.
pub struct Opener {
    keys: Arc<SharedKeys>,
    purpose: Purpose,
    version: u64,
    max_age_ns: u64,
    sessions: Vec<Session>,
    buffer: Vec<u8>,
}

impl Opener {
    /// `max_age_ns`: how much the time of a message may differ from `now_ns`.
    pub fn new(keys: Arc<SharedKeys>, purpose: Purpose, max_age_ns: u64) -> Self {
        let version = keys.version();
        Self { keys, purpose, version, max_age_ns, sessions: Vec::new(), buffer: Vec::new() }
    }

    /// The message. Only an authentic one changes what is remembered.
    #[inline]
    pub fn open(&mut self, bytes: &[u8], now_ns: u64) -> Result<&[u8], Fault> {
        if !is_sealed(bytes) {
            return Err(Fault::Unsealed);
        }
        if bytes.len() < SEAL_BYTES || get_u16(bytes, MESSAGE_HEADER_BLOCK_LENGTH) != BLOCK_LENGTH {
            return Err(Fault::Malformed);
        }
        // The number is authenticated with the message: with another number the message is an altered one.
        if get_u64(bytes, ORIGIN) == self.keys.origin {
            return Err(Fault::Reflected);
        }
        if self.keys.version() != self.version {
            self.forget_removed_keys();
        }
        let (key_id, session) = (get_u32(bytes, KEY_ID), get_u64(bytes, SESSION));
        let counter = get_u64(bytes, COUNTER);
        if counter.abs_diff(now_ns) > self.max_age_ns {
            return Err(Fault::Stale);
        }
        let at = match self.sessions.iter().position(|s| s.session == session && s.key_id == key_id) {
            Some(at) if self.sessions[at].counters.is_known(counter) => return Err(Fault::Replayed),
            Some(at) => at,
            None => self.begin(key_id, session)?,
        };
        let (prefix, sealed) = bytes.split_at(PREFIX_BYTES);
        self.buffer.clear();
        self.buffer.extend_from_slice(sealed);
        let known = &mut self.sessions[at];
        let opened = known.aead.open_in_place(nonce(counter), Aad::from(prefix), &mut self.buffer);
        if opened.is_err() {
            // A session that never had an authentic message is none.
            if known.last == 0 {
                self.sessions.swap_remove(at);
            }
            return Err(Fault::Altered);
        }
        known.last = known.last.max(counter);
        known.counters.add(counter);
        if at + 1 == self.sessions.len() && at >= MAX_SESSIONS {
            // One over the limit for the time of its first message: the quietest one goes.
            let quietest = self.sessions.iter().enumerate().min_by_key(|(_, s)| s.last).map(|(n, _)| n);
            if let Some(quietest) = quietest {
                if self.sessions[quietest].last.saturating_add(self.max_age_ns) >= now_ns {
                    self.sessions.swap_remove(at);
                    return Err(Fault::Sessions);
                }
                self.sessions.swap_remove(quietest);
            }
        }
        Ok(&self.buffer[..sealed.len() - TAG_BYTES])
    }

    #[cold]
    fn begin(&mut self, key_id: u32, session: u64) -> Result<usize, Fault> {
        let all = self.keys.get();
        let key = all.iter().find(|key| key.id == key_id).ok_or(Fault::WrongKey)?;
        let aead = session_key(key, session, self.purpose).ok_or(Fault::WrongKey)?;
        self.sessions.push(Session { key_id, session, last: 0, counters: Counters::default(), aead });
        Ok(self.sessions.len() - 1)
    }

    #[cold]
    fn forget_removed_keys(&mut self) {
        self.version = self.keys.version();
        let all = self.keys.get();
        self.sessions.retain(|session| all.iter().any(|key| key.id == session.key_id));
    }
}

#[cfg(test)]
mod tests;
