//! `OfferResult`: the outcome of an offered frame.

use pyo3::prelude::*;
use tensorpool_dataplane::producer as plane;
use tensorpool_dataplane::producer::Outcome;

/// The outcome of an offered or committed frame. True if its descriptor was published.
///
///     if not producer.offer(image):
///         missed += 1
#[pyclass(frozen, module = "tensorpool._native")]
pub struct OfferResult {
    result: plane::OfferResult,
}

impl OfferResult {
    pub fn new(result: plane::OfferResult) -> Self {
        Self { result }
    }
}

#[pymethods]
impl OfferResult {
    /// The outcome as text, equal to a member of `tensorpool.Outcome`: "published", "deferred",
    /// "back_pressured", "not_connected", "closed", "no_pool", "slot_claimed" or "detached".
    #[getter]
    fn outcome(&self) -> &'static str {
        self.result.outcome.as_str()
    }

    /// The sequence of the frame. None if the frame was dropped before it had one.
    #[getter]
    fn seq(&self) -> Option<u64> {
        self.result.seq
    }

    fn __bool__(&self) -> bool {
        self.result.outcome == Outcome::Published
    }

    fn __repr__(&self) -> String {
        match self.result.seq {
            Some(seq) => format!("<OfferResult {} seq={seq}>", self.outcome()),
            None => format!("<OfferResult {}>", self.outcome()),
        }
    }
}
