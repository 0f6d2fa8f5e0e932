//! `ConsumerHello` and `ConsumerConfig`: what a consumer asks for, and what it gets (wire §5, §10.1.2,
//! §10.1.3). Pure.

use crate::wire::announce::{put_string, take, take_string};
use crate::wire::layout::*;

/// A channel and a stream id, as requested or as granted. One without the other is no address (wire §10.1.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamAddress {
    pub channel: String,
    pub stream_id: u32,
}

/// A stream request, decoded from its channel and stream id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamRequest {
    None,
    At(StreamAddress),
    /// Only one of the two fields is set. The producer must decline it.
    Invalid,
}

impl StreamRequest {
    fn from_fields(channel: String, stream_id: u32) -> Self {
        match (channel.is_empty(), stream_id) {
            (true, 0) => Self::None,
            (false, 1..) => Self::At(StreamAddress { channel, stream_id }),
            _ => Self::Invalid,
        }
    }

    fn fields(&self) -> (&str, u32) {
        match self {
            Self::At(address) => (&address.channel, address.stream_id),
            Self::None | Self::Invalid => ("", 0),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Stream,
    RateLimited,
}

impl Mode {
    pub const fn code(self) -> u8 {
        match self {
            Self::Stream => MODE_STREAM,
            Self::RateLimited => MODE_RATE_LIMITED,
        }
    }

    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            MODE_STREAM => Some(Self::Stream),
            MODE_RATE_LIMITED => Some(Self::RateLimited),
            _ => None,
        }
    }
}

/// How often a consumer asks for FrameProgress. The producer chooses what is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressHints {
    pub interval_us: Option<u32>,
    pub bytes_delta: Option<u32>,
    pub major_delta_units: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerHello {
    pub stream_id: u32,
    pub consumer_id: u32,
    pub supports_shm: bool,
    pub supports_progress: bool,
    pub mode: Mode,
    /// 0: no limit.
    pub max_rate_hz: u32,
    pub expected_layout_version: u32,
    pub hints: ProgressHints,
    pub descriptor: StreamRequest,
    pub control: StreamRequest,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerConfig {
    pub stream_id: u32,
    pub consumer_id: u32,
    pub use_shm: bool,
    pub mode: Mode,
    /// Rate set by a supervisor in place of the consumer's hello. 0: no limit.
    pub max_rate_hz: Option<u32>,
    pub fallback_uri: String,
    pub descriptor: StreamRequest,
    pub control: StreamRequest,
}

fn option(value: u32) -> Option<u32> {
    (value != NULL_U32).then_some(value)
}

fn boolean(value: u8, what: &'static str) -> Result<bool, &'static str> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(what),
    }
}

/// Splits a message of the wire schema into its block, of at least the known length, and the bytes after it.
pub(crate) fn wire_block(bytes: &[u8], known: u16) -> Result<(&[u8], &[u8]), &'static str> {
    if get_u16(bytes, MESSAGE_HEADER_VERSION) < WIRE_SCHEMA_VERSION {
        return Err("version");
    }
    let length = get_u16(bytes, MESSAGE_HEADER_BLOCK_LENGTH);
    let mut rest = &bytes[MESSAGE_HEADER_LENGTH..];
    let b = take(&mut rest, usize::from(length), "block")?;
    if length < known { Err("block") } else { Ok((b, rest)) }
}

pub(crate) fn wire_message(block_length: u16, template_id: u16) -> Vec<u8> {
    let mut out = vec![0; MESSAGE_HEADER_LENGTH + usize::from(block_length)];
    put_message_header(&mut out, block_length, template_id);
    out
}

impl ConsumerHello {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = wire_message(CONSUMER_HELLO_BLOCK_LENGTH, CONSUMER_HELLO_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        let ((descriptor, descriptor_id), (control, control_id)) =
            (self.descriptor.fields(), self.control.fields());
        put_u32(b, CONSUMER_HELLO_STREAM_ID, self.stream_id);
        put_u32(b, CONSUMER_HELLO_CONSUMER_ID, self.consumer_id);
        b[CONSUMER_HELLO_SUPPORTS_SHM] = u8::from(self.supports_shm);
        b[CONSUMER_HELLO_SUPPORTS_PROGRESS] = u8::from(self.supports_progress);
        b[CONSUMER_HELLO_MODE] = self.mode.code();
        put_u32(b, CONSUMER_HELLO_MAX_RATE_HZ, self.max_rate_hz);
        put_u32(b, CONSUMER_HELLO_EXPECTED_LAYOUT_VERSION, self.expected_layout_version);
        put_u32(b, CONSUMER_HELLO_PROGRESS_INTERVAL_US, self.hints.interval_us.unwrap_or(NULL_U32));
        put_u32(b, CONSUMER_HELLO_PROGRESS_BYTES_DELTA, self.hints.bytes_delta.unwrap_or(NULL_U32));
        let major = self.hints.major_delta_units.unwrap_or(NULL_U32);
        put_u32(b, CONSUMER_HELLO_PROGRESS_MAJOR_DELTA_UNITS, major);
        put_u32(b, CONSUMER_HELLO_DESCRIPTOR_STREAM_ID, descriptor_id);
        put_u32(b, CONSUMER_HELLO_CONTROL_STREAM_ID, control_id);
        put_string(&mut out, descriptor);
        put_string(&mut out, control);
        out
    }

    pub fn decode_body(bytes: &[u8]) -> Result<Self, &'static str> {
        let (b, mut rest) = wire_block(bytes, CONSUMER_HELLO_BLOCK_LENGTH)?;
        let descriptor = take_string(&mut rest, "descriptorChannel")?;
        let control = take_string(&mut rest, "controlChannel")?;
        Ok(Self {
            stream_id: get_u32(b, CONSUMER_HELLO_STREAM_ID),
            consumer_id: get_u32(b, CONSUMER_HELLO_CONSUMER_ID),
            supports_shm: boolean(b[CONSUMER_HELLO_SUPPORTS_SHM], "supportsShm")?,
            supports_progress: boolean(b[CONSUMER_HELLO_SUPPORTS_PROGRESS], "supportsProgress")?,
            mode: Mode::from_code(b[CONSUMER_HELLO_MODE]).ok_or("mode")?,
            max_rate_hz: get_u32(b, CONSUMER_HELLO_MAX_RATE_HZ),
            expected_layout_version: get_u32(b, CONSUMER_HELLO_EXPECTED_LAYOUT_VERSION),
            hints: ProgressHints {
                interval_us: option(get_u32(b, CONSUMER_HELLO_PROGRESS_INTERVAL_US)),
                bytes_delta: option(get_u32(b, CONSUMER_HELLO_PROGRESS_BYTES_DELTA)),
                major_delta_units: option(get_u32(b, CONSUMER_HELLO_PROGRESS_MAJOR_DELTA_UNITS)),
            },
            descriptor: StreamRequest::from_fields(
                descriptor,
                get_u32(b, CONSUMER_HELLO_DESCRIPTOR_STREAM_ID),
            ),
            control: StreamRequest::from_fields(control, get_u32(b, CONSUMER_HELLO_CONTROL_STREAM_ID)),
        })
    }
}

impl ConsumerConfig {
    pub fn encode(&self) -> Vec<u8> {
        let length = match self.max_rate_hz {
            Some(_) => CONSUMER_CONFIG_R2_BLOCK_LENGTH,
            None => CONSUMER_CONFIG_BLOCK_LENGTH,
        };
        let mut out = wire_message(length, CONSUMER_CONFIG_TEMPLATE_ID);
        let b = &mut out[MESSAGE_HEADER_LENGTH..];
        if let Some(hz) = self.max_rate_hz {
            put_u32(b, CONSUMER_CONFIG_R2_MAX_RATE_HZ, hz);
        }
        let ((descriptor, descriptor_id), (control, control_id)) =
            (self.descriptor.fields(), self.control.fields());
        put_u32(b, CONSUMER_CONFIG_STREAM_ID, self.stream_id);
        put_u32(b, CONSUMER_CONFIG_CONSUMER_ID, self.consumer_id);
        b[CONSUMER_CONFIG_USE_SHM] = u8::from(self.use_shm);
        b[CONSUMER_CONFIG_MODE] = self.mode.code();
        put_u32(b, CONSUMER_CONFIG_DESCRIPTOR_STREAM_ID, descriptor_id);
        put_u32(b, CONSUMER_CONFIG_CONTROL_STREAM_ID, control_id);
        put_string(&mut out, &self.fallback_uri);
        put_string(&mut out, descriptor);
        put_string(&mut out, control);
        out
    }

    pub fn decode_body(bytes: &[u8]) -> Result<Self, &'static str> {
        let (b, mut rest) = wire_block(bytes, CONSUMER_CONFIG_BLOCK_LENGTH)?;
        let fallback_uri = take_string(&mut rest, "payloadFallbackUri")?;
        let descriptor = take_string(&mut rest, "descriptorChannel")?;
        let control = take_string(&mut rest, "controlChannel")?;
        let has_rate = b.len() == usize::from(CONSUMER_CONFIG_R2_BLOCK_LENGTH);
        Ok(Self {
            stream_id: get_u32(b, CONSUMER_CONFIG_STREAM_ID),
            consumer_id: get_u32(b, CONSUMER_CONFIG_CONSUMER_ID),
            use_shm: boolean(b[CONSUMER_CONFIG_USE_SHM], "useShm")?,
            mode: Mode::from_code(b[CONSUMER_CONFIG_MODE]).ok_or("mode")?,
            max_rate_hz: has_rate.then(|| get_u32(b, CONSUMER_CONFIG_R2_MAX_RATE_HZ)).and_then(option),
            fallback_uri,
            descriptor: StreamRequest::from_fields(
                descriptor,
                get_u32(b, CONSUMER_CONFIG_DESCRIPTOR_STREAM_ID),
            ),
            control: StreamRequest::from_fields(control, get_u32(b, CONSUMER_CONFIG_CONTROL_STREAM_ID)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address() -> StreamRequest {
        StreamRequest::At(StreamAddress { channel: "aeron:ipc".into(), stream_id: 31_000 })
    }

    fn hello() -> ConsumerHello {
        ConsumerHello {
            stream_id: 10_000,
            consumer_id: 7,
            supports_shm: true,
            supports_progress: true,
            mode: Mode::RateLimited,
            max_rate_hz: 25,
            expected_layout_version: 1,
            hints: ProgressHints { interval_us: Some(500), bytes_delta: None, major_delta_units: Some(16) },
            descriptor: address(),
            control: StreamRequest::None,
        }
    }

    fn config() -> ConsumerConfig {
        ConsumerConfig {
            stream_id: 10_000,
            consumer_id: 7,
            use_shm: false,
            mode: Mode::Stream,
            max_rate_hz: None,
            fallback_uri: "bridge://1".into(),
            descriptor: StreamRequest::None,
            control: address(),
        }
    }

    #[test]
    fn hello_and_config_round_trip() {
        assert_eq!(ConsumerHello::decode_body(&hello().encode()), Ok(hello()));
        assert_eq!(ConsumerConfig::decode_body(&config().encode()), Ok(config()));
        let limited = ConsumerConfig { mode: Mode::RateLimited, max_rate_hz: Some(5), ..config() };
        assert_eq!(ConsumerConfig::decode_body(&limited.encode()), Ok(limited));
    }

    /// requirement: wire-10.1.3-2
    #[test]
    fn half_a_stream_address_is_invalid() {
        assert_eq!(StreamRequest::from_fields(String::new(), 0), StreamRequest::None);
        assert_eq!(StreamRequest::from_fields("aeron:ipc".into(), 0), StreamRequest::Invalid);
        assert_eq!(StreamRequest::from_fields(String::new(), 5), StreamRequest::Invalid);
    }

    #[test]
    fn every_truncation_is_malformed() {
        let (hello, config) = (hello().encode(), config().encode());
        for len in MESSAGE_HEADER_LENGTH..hello.len() {
            assert!(ConsumerHello::decode_body(&hello[..len]).is_err(), "{len}");
        }
        for len in MESSAGE_HEADER_LENGTH..config.len() {
            assert!(ConsumerConfig::decode_body(&config[..len]).is_err(), "{len}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 8..200), length in 0u16..60) {
            put_message_header(&mut bytes, length, CONSUMER_HELLO_TEMPLATE_ID);
            let _ = ConsumerHello::decode_body(&bytes);
            let _ = ConsumerConfig::decode_body(&bytes);
        }
    }
}
