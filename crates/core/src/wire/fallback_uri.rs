//! The fallback URI `bridge://<id>?payload=…&payload_stream=…&control=…&control_stream=…&stream=…`: where a
//! consumer that does not use shared memory reads frames (wire §10.1.3). Values are percent-encoded. Pure;
//! the text is untrusted.

use crate::wire::layout::MAX_U32;

/// The streams of a bridge that a consumer reads itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallbackUri {
    pub instance_id: String,
    pub payload: (String, i32),
    pub control: (String, i32),
    /// The source stream id, which chunks carry.
    pub stream_id: u32,
}

const SCHEME: &str = "bridge://";

impl FallbackUri {
    /// Parses a URI. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts = text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('?'));
        let (id, query) =
            parts.filter(|(id, _)| !id.is_empty()).ok_or("use bridge://<id>?payload=…".to_owned())?;
        let mut found: [Option<String>; 5] = [const { None }; 5];
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair:?} has no value"))?;
            // An unknown key may come from a later version.
            if let Some(at) = KEYS.iter().position(|known| *known == key) {
                found[at] = Some(decoded(value).ok_or_else(|| format!("{key} is not percent-encoded"))?);
            }
        }
        let missing: Vec<_> =
            KEYS.iter().zip(&found).filter(|(_, value)| value.is_none()).map(|(key, _)| *key).collect();
        let [Some(payload), Some(payload_stream), Some(control), Some(control_stream), Some(stream)] = found
        else {
            return Err(format!("{} is missing", missing.join(", ")));
        };
        Ok(Self {
            instance_id: id.to_owned(),
            payload: (channel(KEYS[0], payload)?, number(KEYS[1], &payload_stream, i32::MAX as u32)? as i32),
            control: (channel(KEYS[2], control)?, number(KEYS[3], &control_stream, i32::MAX as u32)? as i32),
            stream_id: number(KEYS[4], &stream, MAX_U32)?,
        })
    }
}

const KEYS: [&str; 5] = ["payload", "payload_stream", "control", "control_stream", "stream"];

fn channel(key: &str, text: String) -> Result<String, String> {
    if text.starts_with("aeron:udp?") {
        return Ok(text);
    }
    Err(format!("{key} {text:?} is no Aeron UDP channel"))
}

fn number(key: &str, text: &str, last: u32) -> Result<u32, String> {
    let is_plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse::<u32>().ok().filter(|n| is_plain && (1..=last).contains(n));
    number.ok_or_else(|| format!("{key} {text:?} is no stream id"))
}

fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        out.push((high << 4 | low) as u8);
    }
    // Control characters would end a C string early or corrupt a log.
    String::from_utf8(out).ok().filter(|text| !text.chars().any(char::is_control))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "bridge://lab?payload=aeron%3Audp%3Fendpoint%3D10.0.0.2%3A40100%7Cmtu%3D1408&\
                        payload_stream=3000&control=aeron:udp?endpoint%3D10.0.0.2%3a40101&control_stream=3001&\
                        stream=10000";

    #[test]
    fn fallback_uri_names_two_streams_and_a_source() {
        let text = FallbackUri::parse(GOOD).unwrap();
        assert_eq!(text.instance_id, "lab");
        assert_eq!(text.payload, ("aeron:udp?endpoint=10.0.0.2:40100|mtu=1408".into(), 3000));
        assert_eq!(text.control, ("aeron:udp?endpoint=10.0.0.2:40101".into(), 3001));
        assert_eq!(text.stream_id, 10_000);
        let more = format!("{GOOD}&colour=red");
        assert_eq!(FallbackUri::parse(&more), Ok(text), "a later version may add keys");
    }

    #[test]
    fn invalid_fallback_uri_is_explained() {
        for (old, new, why) in [
            ("bridge://", "http://", "use bridge://"),
            ("lab?", "?", "use bridge://"),
            ("&stream=10000", "", "stream is missing"),
            ("stream=10000", "stream=0", "is no stream id"),
            ("&stream=10000", "&stream=4294967295", "is no stream id"),
            ("&stream=10000", "&stream=+5", "is no stream id"),
            ("payload_stream=3000", "payload_stream=2147483648", "is no stream id"),
            ("aeron:udp?", "aeron:ipc?", "is no Aeron UDP channel"),
            ("%3a40101", "%3", "is not percent-encoded"),
            ("%3a40101", "%00", "is not percent-encoded"),
        ] {
            let found = FallbackUri::parse(&GOOD.replace(old, new)).unwrap_err();
            assert!(found.contains(why), "{new}: {found}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_parses_or_fails_cleanly(text in ".*") {
            prop_assert!(FallbackUri::parse(&text).is_err());
            let _ = FallbackUri::parse(&format!("{GOOD}{text}"));
        }
    }
}
