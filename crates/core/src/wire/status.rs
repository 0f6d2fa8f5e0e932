//! Status reports and latencies of endpoints (JSON in an event), parsed without allocation. Pure.
//!
//! Parses only the form that this repository writes, because a monitor reads thousands of them a second. The
//! caller parses every other valid JSON form itself.

use crate::wire::event;

/// Enough for every endpoint of ours. A report with more is left to the caller's JSON parser.
const MAX_REASONS: usize = 64;
const MAX_SOURCES: usize = 64;
const MAX_NAME_BYTES: usize = 256;

/// One report of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusReport<'a> {
    Consumer(ConsumerStatus<'a>),
    Producer(ProducerStatus<'a>),
    Latency(LatencyStatus<'a>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerStatus<'a> {
    pub stream_id: u64,
    pub consumer_id: u64,
    pub pid: u64,
    pub epoch: Option<u64>,
    pub first_seq: Option<u64>,
    pub last_seq: Option<u64>,
    pub span: u64,
    pub received: u64,
    pub dropped: Counts<'a>,
    pub outside: Counts<'a>,
    pub polls: u64,
    pub is_final: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerStatus<'a> {
    pub stream_id: u64,
    pub producer_id: u64,
    pub pid: u64,
    pub epoch: u64,
    pub next_seq: u64,
    pub committed: u64,
    pub published: u64,
    pub unpublished: Counts<'a>,
    pub deferred: u64,
    pub dropped: Counts<'a>,
    pub holes: u64,
    pub bytes: u64,
    pub sources: Sources<'a>,
    pub is_final: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencyStatus<'a> {
    pub stream_id: u64,
    pub consumer_id: u64,
    pub since: &'a str,
    pub figures: [u64; 4],
}

/// Counts by reason, none of them 0. Validated when the report is parsed, decoded again by `iter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts<'a>(&'a [u8]);

impl<'a> Counts<'a> {
    pub fn iter(self) -> impl Iterator<Item = (&'a str, u64)> {
        let mut rest = Scan(self.0);
        std::iter::from_fn(move || {
            let value = rest.count()?;
            let _ = rest.eat(b",");
            Some(value)
        })
    }
}

/// Stream ids in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources<'a>(&'a [u8]);

impl<'a> Sources<'a> {
    pub fn iter(self) -> impl Iterator<Item = u64> + 'a {
        let mut rest = Scan(self.0);
        std::iter::from_fn(move || {
            let value = rest.number()?;
            let _ = rest.eat(b", ");
            Some(value)
        })
    }
}

/// Parses a report. `None` for any other message or form. Allocates nothing.
pub fn read(message: &[u8]) -> Option<StatusReport<'_>> {
    let [tag, key, value] = event::text_fields(message)?;
    let mut rest = Scan(value);
    if !tag.is_ascii() {
        return None;
    }
    let report = if tag.starts_with(b"service:consumer:") {
        match key {
            b"account" => StatusReport::Consumer(rest.consumer()?),
            b"latency" => StatusReport::Latency(rest.latency()?),
            _ => return None,
        }
    } else if tag.starts_with(b"service:producer:") && key == b"account" {
        StatusReport::Producer(rest.producer()?)
    } else {
        return None;
    };
    rest.0.is_empty().then_some(report)
}

/// The bytes that are left to parse.
struct Scan<'a>(&'a [u8]);

impl<'a> Scan<'a> {
    fn eat(&mut self, expected: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(expected)?;
        Some(())
    }

    fn take(&mut self, length: usize) -> &'a [u8] {
        let (value, rest) = self.0.split_at(length);
        self.0 = rest;
        value
    }

    fn digits(&mut self) -> Option<&'a [u8]> {
        let length = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        (1..=20).contains(&length).then(|| self.take(length))
    }

    /// A JSON number: no leading zeros.
    fn number(&mut self) -> Option<u64> {
        let digits = self.digits()?;
        if digits.len() > 1 && digits[0] == b'0' {
            return None;
        }
        value_of(digits)
    }

    fn quoted(&mut self) -> Option<u64> {
        self.eat(b"\"")?;
        let value = value_of(self.digits()?)?;
        self.eat(b"\"")?;
        Some(value)
    }

    /// Outer `None`: neither a number nor `null`.
    fn quoted_or_null(&mut self) -> Option<Option<u64>> {
        match self.eat(b"null") {
            Some(()) => Some(None),
            None => self.quoted().map(Some),
        }
    }

    fn boolean(&mut self) -> Option<bool> {
        match self.eat(b"true") {
            Some(()) => Some(true),
            None => self.eat(b"false").map(|()| false),
        }
    }

    /// A name without escapes. A name that needs unescaping is left to the caller's JSON parser.
    fn name(&mut self) -> Option<&'a str> {
        self.eat(b"\"")?;
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_- .".contains(byte);
        let length = self.0.iter().take_while(|byte| is_plain(byte)).count();
        let value = (length <= MAX_NAME_BYTES).then(|| self.take(length))?;
        self.eat(b"\"")?;
        str::from_utf8(value).ok()
    }

    fn count(&mut self) -> Option<(&'a str, u64)> {
        let name = self.name()?;
        self.eat(b":")?;
        Some((name, self.number().filter(|n| *n > 0)?))
    }

    fn counts(&mut self) -> Option<Counts<'a>> {
        self.eat(b"{")?;
        let begin = self.0;
        for position in 0..=MAX_REASONS {
            let read = begin.len() - self.0.len();
            if self.eat(b"}").is_some() {
                return Some(Counts(&begin[..read]));
            }
            if position > 0 {
                self.eat(b",")?;
            }
            self.count()?;
        }
        None
    }

    fn sources(&mut self) -> Option<Sources<'a>> {
        self.eat(b"[")?;
        let begin = self.0;
        let mut last = None;
        for position in 0..=MAX_SOURCES {
            let read = begin.len() - self.0.len();
            if self.eat(b"]").is_some() {
                return Some(Sources(&begin[..read]));
            }
            if position > 0 {
                self.eat(b", ")?;
            }
            last = Some(self.number().filter(|n| last.is_none_or(|before| before < *n))?);
        }
        None
    }

    fn consumer(&mut self) -> Option<ConsumerStatus<'a>> {
        Some(ConsumerStatus {
            stream_id: self.eat(b"{\"stream_id\":").and_then(|()| self.number())?,
            consumer_id: self.eat(b",\"consumer_id\":").and_then(|()| self.number())?,
            pid: self.eat(b",\"pid\":").and_then(|()| self.number())?,
            epoch: self.eat(b",\"epoch\":").and_then(|()| self.quoted_or_null())?,
            first_seq: self.eat(b",\"first_seq\":").and_then(|()| self.quoted_or_null())?,
            last_seq: self.eat(b",\"last_seq\":").and_then(|()| self.quoted_or_null())?,
            span: self.eat(b",\"span\":").and_then(|()| self.number())?,
            received: self.eat(b",\"received\":").and_then(|()| self.number())?,
            dropped: self.eat(b",\"dropped\":").and_then(|()| self.counts())?,
            outside: self.eat(b",\"outside\":").and_then(|()| self.counts())?,
            polls: self.eat(b",\"looks\":").and_then(|()| self.number())?,
            is_final: self.final_flag()?,
        })
    }

    fn producer(&mut self) -> Option<ProducerStatus<'a>> {
        Some(ProducerStatus {
            stream_id: self.eat(b"{\"stream_id\":").and_then(|()| self.number())?,
            producer_id: self.eat(b",\"producer_id\":").and_then(|()| self.number())?,
            pid: self.eat(b",\"pid\":").and_then(|()| self.number())?,
            epoch: self.eat(b",\"epoch\":").and_then(|()| self.quoted())?,
            next_seq: self.eat(b",\"next_seq\":").and_then(|()| self.quoted())?,
            committed: self.eat(b",\"committed\":").and_then(|()| self.number())?,
            published: self.eat(b",\"published\":").and_then(|()| self.number())?,
            unpublished: self.eat(b",\"unpublished\":").and_then(|()| self.counts())?,
            deferred: self.eat(b",\"deferred\":").and_then(|()| self.number())?,
            dropped: self.eat(b",\"dropped\":").and_then(|()| self.counts())?,
            holes: self.eat(b",\"holes\":").and_then(|()| self.number())?,
            bytes: self.eat(b",\"bytes\":").and_then(|()| self.quoted())?,
            sources: self.eat(b",\"sources\":").and_then(|()| self.sources())?,
            is_final: self.final_flag()?,
        })
    }

    fn final_flag(&mut self) -> Option<bool> {
        let value = self.eat(b",\"final\":").and_then(|()| self.boolean())?;
        self.eat(b"}")?;
        Some(value)
    }

    fn latency(&mut self) -> Option<LatencyStatus<'a>> {
        let stream_id = self.eat(b"{\"stream_id\":").and_then(|()| self.number())?;
        let consumer_id = self.eat(b",\"consumer_id\":").and_then(|()| self.number())?;
        let since = self.eat(b",\"since\":").and_then(|()| self.name())?;
        self.eat(b",")?;
        let figures = self.figures()?;
        for name in [&b",\"left_out\":"[..], b",\"received\":", b",\"dropped\":"] {
            self.eat(name).and_then(|()| self.number())?;
        }
        self.eat(b",\"life\":{")?;
        self.figures()?;
        self.eat(b"}}")?;
        Some(LatencyStatus { stream_id, consumer_id, since, figures })
    }

    /// Count, p50, p99 and maximum.
    fn figures(&mut self) -> Option<[u64; 4]> {
        Some([
            self.eat(b"\"count\":").and_then(|()| self.number())?,
            self.eat(b",\"p50_ns\":").and_then(|()| self.number())?,
            self.eat(b",\"p99_ns\":").and_then(|()| self.number())?,
            self.eat(b",\"max_ns\":").and_then(|()| self.number())?,
        ])
    }
}

fn value_of(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |value, digit| value.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSUMER: &str = r#"{"stream_id":5,"consumer_id":7,"pid":8,"epoch":"1","first_seq":null,"last_seq":"18446744073709551615","span":10,"received":8,"dropped":{"late":1,"gap":2},"outside":{},"looks":4,"final":true}"#;

    fn message(tag: &str, key: &str, value: &str) -> Vec<u8> {
        event::encode_text(tag, key, value, 1)
    }

    #[test]
    fn consumer_status_is_parsed() {
        let bytes = message("service:consumer:5", "account", CONSUMER);
        let Some(StatusReport::Consumer(report)) = read(&bytes) else { panic!("not read") };
        assert_eq!((report.stream_id, report.consumer_id, report.pid, report.polls), (5, 7, 8, 4));
        assert_eq!((report.epoch, report.first_seq, report.last_seq), (Some(1), None, Some(u64::MAX)));
        assert_eq!((report.span, report.received, report.is_final), (10, 8, true));
        assert_eq!(report.dropped.iter().collect::<Vec<_>>(), [("late", 1), ("gap", 2)]);
        assert_eq!(report.outside.iter().count(), 0);
    }

    #[test]
    fn truncated_or_other_forms_are_not_parsed() {
        for end in 0..CONSUMER.len() {
            assert_eq!(read(&message("service:consumer:5", "account", &CONSUMER[..end])), None);
        }
        for (from, to) in [
            ("\"span\":10", "\"span\":010"),
            ("\"span\":10", "\"span\":-1"),
            ("\"span\":10", "\"span\":18446744073709551616"),
            ("\"late\":1", "\"late\":0"),
            ("\"late\":1", "\"l\\u0061te\":1"),
            ("{\"stream_id\"", "{ \"stream_id\""),
            ("\"final\":true}", "\"final\":true} "),
            ("\"late\":1,", "\"late\":1"),
        ] {
            let other = CONSUMER.replace(from, to);
            assert_ne!(other, CONSUMER);
            assert_eq!(read(&message("service:consumer:5", "account", &other)), None, "{other}");
        }
        assert_eq!(read(&message("service:consumer:5", "latency", CONSUMER)), None);
        assert_eq!(read(&message("service:producer:5", "account", CONSUMER)), None);
        assert_eq!(read(&message("service:consumer", "account", CONSUMER)), None);
    }
}
