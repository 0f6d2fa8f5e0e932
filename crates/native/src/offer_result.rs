//! `Offered`: what became of a frame.

use pyo3::prelude::*;
use tensorpool_dataplane::producer as plane;
use tensorpool_dataplane::producer::Outcome;

/// What became of an offered frame. True if it was published.
#[pyclass(frozen, module = "tensorpool._native")]
pub struct Offered {
    offered: plane::OfferResult,
}

impl Offered {
    pub fn new(offered: plane::OfferResult) -> Self {
        Self { offered }
    }
}

#[pymethods]
impl Offered {
    #[getter]
    fn outcome(&self) -> &'static str {
        self.offered.outcome.as_str()
    }

    #[getter]
    fn seq(&self) -> Option<u64> {
        self.offered.seq
    }

    fn __bool__(&self) -> bool {
        self.offered.outcome == Outcome::Published
    }

    fn __repr__(&self) -> String {
        match self.offered.seq {
            Some(seq) => format!("<Offered {} seq={seq}>", self.outcome()),
            None => format!("<Offered {}>", self.outcome()),
        }
    }
}
