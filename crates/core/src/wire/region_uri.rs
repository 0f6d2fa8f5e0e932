//! The grammar of region URIs (wire §15.22): `shm:file?path=<absolute>[|require_hugepages=<bool>]`. Pure.
//!
//! Strict: one scheme, two parameters in this order, nothing else. Paths are POSIX paths: a Windows path
//! fails the check for a leading slash.

use std::fmt;

const SCHEME: &str = "shm:file?";
const PATH: &str = "path=";
const HUGEPAGES: &str = "require_hugepages=";
/// Longer than any path that Linux opens, and short enough to reject at once.
const MAX_URI_BYTES: usize = 4096 + 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionUri {
    pub path: String,
    pub require_hugepages: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UriError {
    Scheme,
    TooLong,
    MissingPath,
    RelativePath,
    /// A character outside the grammar, and its offset.
    Character(char, usize),
    Parameter(String),
    Boolean(String),
}

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheme => write!(f, "unknown scheme; only shm:file?path=... is supported"),
            Self::TooLong => write!(f, "longer than {MAX_URI_BYTES} bytes"),
            Self::MissingPath => write!(f, "the first parameter must be path=<absolute path>"),
            Self::RelativePath => write!(f, "the path is not absolute"),
            Self::Character(c, at) => {
                write!(f, "character {c:?} at {at} is not allowed in the path")
            }
            Self::Parameter(p) => {
                write!(
                    f,
                    "unknown parameter {p:?}; only path and require_hugepages are defined, separated by |"
                )
            }
            Self::Boolean(v) => write!(f, "require_hugepages is {v:?}; it must be true or false"),
        }
    }
}

impl std::error::Error for UriError {}

impl RegionUri {
    pub fn parse(text: &str) -> Result<Self, UriError> {
        if text.len() > MAX_URI_BYTES {
            return Err(UriError::TooLong);
        }
        let rest = text.strip_prefix(SCHEME).ok_or(UriError::Scheme)?;
        let rest = rest.strip_prefix(PATH).ok_or(UriError::MissingPath)?;
        let mut parts = rest.split('|');
        let path = parts.next().unwrap_or_default();
        if path.is_empty() {
            return Err(UriError::MissingPath);
        }
        let start = SCHEME.len() + PATH.len();
        // VCHAR without "?" (the "|" ended the part): printable ASCII, no space.
        if let Some((at, c)) = path.char_indices().find(|(_, c)| !c.is_ascii_graphic() || *c == '?') {
            return Err(UriError::Character(c, start + at));
        }
        if !path.starts_with('/') {
            return Err(UriError::RelativePath);
        }
        let mut require_hugepages = false;
        if let Some(parameter) = parts.next() {
            let value =
                parameter.strip_prefix(HUGEPAGES).ok_or_else(|| UriError::Parameter(parameter.to_owned()))?;
            require_hugepages = match value {
                "true" => true,
                "false" => false,
                other => return Err(UriError::Boolean(other.to_owned())),
            };
        }
        if let Some(extra) = parts.next() {
            return Err(UriError::Parameter(extra.to_owned()));
        }
        Ok(Self { path: path.to_owned(), require_hugepages })
    }
}

impl fmt::Display for RegionUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{PATH}{}", self.path)?;
        if self.require_hugepages {
            write!(f, "|{HUGEPAGES}true")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> UriError {
        RegionUri::parse(text).expect_err(text)
    }

    #[test]
    fn region_uri_round_trips() {
        for (text, huge) in [
            ("shm:file?path=/dev/shm/a", false),
            ("shm:file?path=/dev/hugepages/a|require_hugepages=true", true),
        ] {
            let uri = RegionUri::parse(text).unwrap();
            assert_eq!(uri.require_hugepages, huge);
            assert_eq!(uri.to_string(), text);
        }
        assert!(!RegionUri::parse("shm:file?path=/a|require_hugepages=false").unwrap().require_hugepages);
    }

    /// requirement: wire-15.22-4, wire-15.22-6
    #[test]
    fn other_schemes_are_refused() {
        for text in ["", "shm:mem?path=/a", "SHM:file?path=/a", "file:///a", "shm:file:path=/a", "bridge://x"]
        {
            assert_eq!(refused(text), UriError::Scheme, "{text}");
        }
    }

    /// requirement: wire-15.22-5, wire-15.22-11, wire-15.22-12
    #[test]
    fn other_parameters_are_refused() {
        for text in [
            "shm:file?path=/a|mode=rw",
            "shm:file?path=/a|",
            "shm:file?path=/a|require_hugepages=true|require_hugepages=true",
            "shm:file?path=/a|require_hugepages=true|x=1",
            "shm:file?path=/a|path=/b",
        ] {
            assert!(matches!(refused(text), UriError::Parameter(_)), "{text}");
        }
        assert_eq!(refused("shm:file?require_hugepages=true|path=/a"), UriError::MissingPath);
        assert!(matches!(refused("shm:file?path=/a&require_hugepages=true|x"), UriError::Parameter(_)));
        for value in ["1", "TRUE", "", "yes"] {
            assert_eq!(
                refused(&format!("shm:file?path=/a|require_hugepages={value}")),
                UriError::Boolean(value.to_owned())
            );
        }
    }

    /// requirement: wire-15.22-1
    #[test]
    fn only_absolute_posix_paths_are_accepted() {
        for text in ["shm:file?path=a/b", "shm:file?path=./a", r"shm:file?path=C:\aeron\a"] {
            assert_eq!(refused(text), UriError::RelativePath, "{text}");
        }
        assert_eq!(refused("shm:file?path="), UriError::MissingPath);
        for c in [' ', '?', '\n', '\0', 'é', '\u{7f}'] {
            assert!(
                matches!(refused(&format!("shm:file?path=/a{c}b")), UriError::Character(x, 16) if x == c)
            );
        }
        assert_eq!(refused(&format!("shm:file?path=/{}", "a".repeat(5000))), UriError::TooLong);
    }
}
