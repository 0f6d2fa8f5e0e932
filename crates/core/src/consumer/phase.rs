//! The phase of a consumer: UNMAPPED, MAPPED or FALLBACK (wire §15.12). Pure.
//!
//! A config may order a fallback, or name a spare one for the case that shared memory cannot be used. A
//! consumer may have a spare one of its own. A fallback URI from which no frames can be read is ignored
//! (wire §10.1.3).

use crate::wire::fallback_uri::FallbackUri;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits for an announce, or for usable regions.
    Unmapped,
    /// Shared memory of the announced epoch is mapped.
    Mapped,
    /// Frames are read from the fallback URI.
    Fallback,
}

impl Phase {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unmapped => "unmapped",
            Self::Mapped => "mapped",
            Self::Fallback => "fallback",
        }
    }
}

/// The last config, and the state of the regions.
#[derive(Clone, Debug, Default)]
pub struct PhaseState {
    is_mapped: bool,
    /// There is no shared memory to use: the announced regions were refused, or none were announced in time.
    is_unusable: bool,
    /// The fallback that a config ordered.
    ordered_fallback: Option<String>,
    /// The fallback for the case that shared memory cannot be used.
    spare_fallback: Option<String>,
    /// The consumer's own fallback for that case, which no config takes away.
    own_fallback: Option<String>,
}

impl PhaseState {
    pub fn on_mapped(&mut self) {
        (self.is_mapped, self.is_unusable) = (true, false);
    }

    pub fn on_unmapped(&mut self) {
        self.is_mapped = false;
    }

    pub fn on_refused(&mut self) {
        (self.is_mapped, self.is_unusable) = (false, true);
    }

    /// No regions were announced in time.
    pub fn on_absent(&mut self) {
        self.is_unusable |= !self.is_mapped;
    }

    /// The consumer's own fallback.
    pub fn set_own_fallback(&mut self, uri: &str) {
        self.own_fallback = Some(uri.to_owned());
    }

    fn spare(&self) -> Option<&str> {
        self.spare_fallback.as_deref().or(self.own_fallback.as_deref())
    }

    /// The last config counts.
    pub fn on_config(&mut self, use_shm: bool, uri: &str) {
        let usable = FallbackUri::parse(uri).is_ok().then(|| uri.to_owned());
        (self.ordered_fallback, self.spare_fallback) = if use_shm { (None, usable) } else { (usable, None) };
    }

    /// The consumer has a new id: configs to the old id do not apply to it.
    pub fn on_new_id(&mut self) {
        (self.ordered_fallback, self.spare_fallback) = (None, None);
    }

    pub fn phase(&self) -> Phase {
        match (&self.ordered_fallback, self.is_mapped, self.spare()) {
            (Some(_), _, _) => Phase::Fallback,
            (None, true, _) => Phase::Mapped,
            (None, false, Some(_)) if self.is_unusable => Phase::Fallback,
            _ => Phase::Unmapped,
        }
    }

    /// The fallback URI in use, if any.
    pub fn fallback_uri(&self) -> Option<&str> {
        let uri = self.ordered_fallback.as_deref().or(self.spare());
        uri.filter(|_| self.phase() == Phase::Fallback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BRIDGE: &str = "bridge://1?payload=aeron%3Audp%3Fendpoint%3Dh%3A1&payload_stream=1\
                          &control=aeron%3Audp%3Fendpoint%3Dh%3A2&control_stream=2&stream=5";
    /// It names no control stream.
    const INCOMPLETE: &str = "bridge://1?payload=aeron%3Audp%3Fendpoint%3Dh%3A1&payload_stream=1&stream=5";

    #[test]
    fn phase_follows_map_and_unmap() {
        let mut phases = PhaseState::default();
        assert_eq!(phases.phase(), Phase::Unmapped);
        phases.on_mapped();
        assert_eq!(phases.phase(), Phase::Mapped);
        phases.on_unmapped();
        assert_eq!((phases.phase(), phases.fallback_uri()), (Phase::Unmapped, None));
    }

    #[test]
    fn config_orders_fallback_and_return() {
        let mut phases = PhaseState::default();
        phases.on_mapped();
        phases.on_config(false, BRIDGE);
        assert_eq!((phases.phase(), phases.fallback_uri()), (Phase::Fallback, Some(BRIDGE)));
        phases.on_config(true, "");
        assert_eq!((phases.phase(), phases.fallback_uri()), (Phase::Mapped, None));
    }

    /// requirement: wire-15.1-1, wire-15.22-13
    #[test]
    fn refused_regions_use_the_spare_fallback() {
        let mut phases = PhaseState::default();
        phases.on_config(true, BRIDGE);
        assert_eq!(phases.phase(), Phase::Unmapped, "there may be shared memory yet");
        phases.on_refused();
        assert_eq!((phases.phase(), phases.fallback_uri()), (Phase::Fallback, Some(BRIDGE)));
        phases.on_mapped();
        assert_eq!((phases.phase(), phases.fallback_uri()), (Phase::Mapped, None));
    }

    /// requirement: wire-10.1.3-1
    #[test]
    fn fallback_that_cannot_be_read_is_ignored() {
        let mut phases = PhaseState::default();
        phases.on_mapped();
        for uri in [
            "gopher://x",
            "",
            "BRIDGE://1",
            "aeron:udp?endpoint=h:1",
            "bridge:1",
            " bridge://1",
            "shm:file?path=/x",
            "bridge://1",
            INCOMPLETE,
        ] {
            phases.on_config(false, uri);
            assert_eq!((phases.phase(), phases.fallback_uri()), (Phase::Mapped, None), "{uri}");
        }
    }

    #[test]
    fn own_fallback_is_used_while_there_is_no_shared_memory() {
        let mut phases = PhaseState::default();
        phases.set_own_fallback(BRIDGE);
        assert_eq!(phases.phase(), Phase::Unmapped, "there may be shared memory yet");
        phases.on_absent();
        assert_eq!((phases.phase(), phases.fallback_uri()), (Phase::Fallback, Some(BRIDGE)));
        phases.on_new_id();
        phases.on_config(true, "");
        assert_eq!(phases.phase(), Phase::Fallback, "no config takes it away");
        phases.on_mapped();
        phases.on_absent();
        assert_eq!((phases.phase(), phases.fallback_uri()), (Phase::Mapped, None));
        phases.on_unmapped();
        assert_eq!(phases.phase(), Phase::Unmapped);
    }

    #[test]
    fn config_of_an_earlier_id_does_not_count() {
        let mut phases = PhaseState::default();
        phases.on_config(false, BRIDGE);
        phases.on_new_id();
        assert_eq!(phases.phase(), Phase::Unmapped);
    }

    #[derive(Clone, Debug)]
    enum Event {
        Mapped,
        Unmapped,
        Refused,
        Config(bool, &'static str),
        NewId,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let uri = prop::sample::select(vec!["", BRIDGE, INCOMPLETE, "aeron:udp?endpoint=h:1", "gopher://x"]);
        let one = prop_oneof![
            Just(Event::Mapped),
            Just(Event::Unmapped),
            Just(Event::Refused),
            (any::<bool>(), uri).prop_map(|(use_shm, uri)| Event::Config(use_shm, uri)),
            Just(Event::NewId),
        ];
        prop::collection::vec(one, 0..40)
    }

    proptest! {
        /// The phase depends on the last state of the regions and on the last config to this id only.
        #[test]
        fn only_the_last_config_counts(events in events()) {
            let mut phases = PhaseState::default();
            for event in &events {
                match *event {
                    Event::Mapped => phases.on_mapped(),
                    Event::Unmapped => phases.on_unmapped(),
                    Event::Refused => phases.on_refused(),
                    Event::Config(use_shm, uri) => phases.on_config(use_shm, uri),
                    Event::NewId => phases.on_new_id(),
                }
            }
            let regions = |e: &&Event| matches!(e, Event::Mapped | Event::Unmapped | Event::Refused);
            let is_mapped = matches!(events.iter().rfind(regions), Some(Event::Mapped));
            let verdict = |e: &&Event| matches!(e, Event::Mapped | Event::Refused);
            let is_unusable = matches!(events.iter().rfind(verdict), Some(Event::Refused));
            let config = |e: &&Event| matches!(e, Event::Config(..) | Event::NewId);
            let (use_shm, uri) = match events.iter().rfind(config) {
                Some(Event::Config(use_shm, uri)) if *uri == BRIDGE => (*use_shm, Some(*uri)),
                _ => (true, None),
            };
            let expected = match uri {
                Some(_) if !use_shm => Phase::Fallback,
                _ if is_mapped => Phase::Mapped,
                Some(_) if is_unusable => Phase::Fallback,
                _ => Phase::Unmapped,
            };
            prop_assert_eq!(phases.phase(), expected);
            prop_assert_eq!(phases.fallback_uri(), uri.filter(|_| expected == Phase::Fallback));
        }
    }
}
