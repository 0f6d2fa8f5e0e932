//! Parameters of Aeron channels. Computed when a handle is requested, not in every duty cycle.

/// Adds `key=value` to a channel unless the key is present.
pub fn with_parameter(channel: &str, parameter: &str) -> String {
    if has_parameter(channel, parameter.split('=').next().unwrap_or(parameter)) {
        return channel.to_owned();
    }
    let separator = if channel.contains('?') { '|' } else { '?' };
    format!("{channel}{separator}{parameter}")
}

/// Whether a channel sets the parameter `key`.
pub fn has_parameter(channel: &str, key: &str) -> bool {
    let parameters = channel.split_once('?').map_or("", |(_, parameters)| parameters);
    parameters.split('|').any(|p| p.split('=').next() == Some(key))
}

/// Channel of an untethered subscription: one that stops polling is rested, and delays no publication.
pub fn untethered(channel: &str) -> String {
    with_parameter(channel, "tether=false")
}

/// Whether a channel uses the network, also as the source of a spy.
pub fn is_udp(channel: &str) -> bool {
    channel.contains("aeron:udp")
}

/// Channel of a tethered subscription: it misses nothing, and holds publications back until it polls. Without
/// the parameter the media driver decides, and those that we start choose untethered.
pub fn tethered(channel: &str) -> String {
    with_parameter(channel, "tether=true")
}

#[cfg(test)]
mod tests {
    use super::{is_udp, tethered, untethered};

    #[test]
    fn udp_channel_is_recognised() {
        assert!(is_udp("aeron:udp?endpoint=10.0.0.2:40100"));
        assert!(is_udp("aeron-spy:aeron:udp?endpoint=10.0.0.2:40100"));
        assert!(!is_udp("aeron:ipc?alias=udp"));
    }

    #[test]
    fn channel_parameter_is_added_once() {
        assert_eq!(untethered("aeron:ipc"), "aeron:ipc?tether=false");
        assert_eq!(untethered("aeron:ipc?mtu=8k"), "aeron:ipc?mtu=8k|tether=false");
        assert_eq!(untethered("aeron:ipc?tether=true"), "aeron:ipc?tether=true");
        assert_eq!(tethered("aeron:udp?endpoint=h:1"), "aeron:udp?endpoint=h:1|tether=true");
    }
}
