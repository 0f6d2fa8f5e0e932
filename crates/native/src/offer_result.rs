//! `OfferResult` and `OfferManyResult`: the outcome of an offered frame, and those of many.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tensorpool_dataplane::producer as plane;
use tensorpool_dataplane::producer::Outcome;

/// The outcome of an offered or committed frame. True if its descriptor was published.
///
///     if not producer.offer(image):
///         missed += 1
#[pyclass(frozen, module = "tensorpool._native")]
#[derive(Clone)]
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

/// The outcomes of the frames of one `offer_many`. True if every one was published.
///
///     result = producer.offer_many(block)
///     if not result:
///         print(result.published, result.outcomes)
#[pyclass(frozen, module = "tensorpool._native")]
pub struct OfferManyResult {
    count: usize,
    batch: plane::OfferedBatch,
}

impl OfferManyResult {
    pub fn new(count: usize, batch: plane::OfferedBatch) -> Self {
        Self { count, batch }
    }
}

#[pymethods]
impl OfferManyResult {
    /// Number of frames that were offered.
    #[getter]
    fn count(&self) -> usize {
        self.count
    }

    /// Number of frames that were published.
    #[getter]
    fn published(&self) -> u64 {
        self.batch.count(Outcome::Published)
    }

    /// Number of frames by outcome, of those outcomes that occurred; they add up to `count`. The keys are equal
    /// to members of `tensorpool.Outcome`.
    #[getter]
    fn outcomes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let outcomes = PyDict::new(py);
        for outcome in Outcome::ALL.into_iter().filter(|o| self.batch.count(*o) > 0) {
            outcomes.set_item(outcome.as_str(), self.batch.count(outcome))?;
        }
        Ok(outcomes)
    }

    /// The sequence of the first frame that is in the ring. None if there is none.
    #[getter]
    fn first_seq(&self) -> Option<u64> {
        self.batch.seqs.map(|(first, _)| first)
    }

    /// The sequence of the last frame that is in the ring. None if there is none.
    #[getter]
    fn last_seq(&self) -> Option<u64> {
        self.batch.seqs.map(|(_, last)| last)
    }

    fn __bool__(&self) -> bool {
        self.batch.count(Outcome::Published) == self.count as u64
    }

    fn __repr__(&self) -> String {
        let others = Outcome::ALL.into_iter().skip(1).filter(|o| self.batch.count(*o) > 0);
        let others: String = others.map(|o| format!(" {}={}", o.as_str(), self.batch.count(o))).collect();
        let seqs = self.batch.seqs.map_or_else(String::new, |(first, last)| format!(" seq={first}..{last}"));
        format!("<OfferManyResult {} of {} published{others}{seqs}>", self.published(), self.count)
    }
}
