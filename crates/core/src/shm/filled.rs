//! The complete rows or columns in the first bytes of a payload (wire §10.2.2). Pure.

use crate::shm::tensor::{Tensor, TensorSpec, item_size};
use crate::wire::layout::*;

/// The first `count` slices along dimension `axis` are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilledSlices {
    pub axis: usize,
    pub count: i32,
}

/// The complete slices in the first `filled` bytes, along the dimension with the largest stride: only those
/// are contiguous. `None` where the layout does not say what a prefix contains: padded rows without a
/// progress unit.
pub fn filled_slices(tensor: &Tensor, filled: u64) -> Option<FilledSlices> {
    let axis = outermost(tensor.major_order, tensor.ndims);
    if !is_contiguous(tensor) && unit_axis(tensor) != Some(axis) {
        return None;
    }
    let dim = tensor.dims[axis];
    // The last slice needs no padding after it.
    let is_all = filled >= extent(tensor);
    let slices = filled / tensor.strides[axis] as u64;
    Some(FilledSlices {
        axis,
        count: if is_all { dim } else { dim.min(i32::try_from(slices).unwrap_or(dim)) },
    })
}

/// The unit in which progress is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressUnit {
    Bytes,
    Rows,
    Columns,
}

impl TensorSpec {
    /// The spec of a frame whose progress is counted in `unit`, and the bytes of one unit. `None` where units
    /// are not contiguous in memory, so that no prefix would contain one.
    pub fn with_progress_unit(mut self, unit: ProgressUnit) -> Option<(Self, u32)> {
        let axis = outermost(self.major_order, self.ndims);
        let inner = (0..usize::from(self.ndims)).filter(|i| *i != axis).map(|i| self.dims[i].max(1) as u64);
        let contiguous = inner.fold(u64::from(item_size(self.dtype)?), u64::saturating_mul);
        // Padding between rows counts as part of them.
        let stride = if self.strides[axis] > 0 { self.strides[axis] as u64 } else { contiguous };
        let stride = u32::try_from(stride).ok()?;
        let (code, unit_axis) = match unit {
            ProgressUnit::Bytes => return Some((self, stride)),
            ProgressUnit::Rows => (PROGRESS_UNIT_ROWS, 0),
            ProgressUnit::Columns => (PROGRESS_UNIT_COLUMNS, 1.min(usize::from(self.ndims) - 1)),
        };
        (self.progress_unit, self.progress_stride_bytes) = (code, stride);
        (axis == unit_axis).then_some((self, stride))
    }
}

/// The dimension whose slices are contiguous in memory.
pub fn outermost(major_order: i16, ndims: u8) -> usize {
    if major_order == MAJOR_ORDER_ROW { 0 } else { usize::from(ndims) - 1 }
}

fn unit_axis(tensor: &Tensor) -> Option<usize> {
    match tensor.progress_unit {
        PROGRESS_UNIT_ROWS => Some(0),
        PROGRESS_UNIT_COLUMNS => Some(1.min(usize::from(tensor.ndims) - 1)),
        _ => None,
    }
}

fn item(tensor: &Tensor) -> i64 {
    i64::from(item_size(tensor.dtype).unwrap_or(1))
}

fn is_contiguous(tensor: &Tensor) -> bool {
    let n = usize::from(tensor.ndims);
    let mut inner = item(tensor);
    for step in 0..n {
        let i = if tensor.major_order == MAJOR_ORDER_ROW { n - 1 - step } else { step };
        if tensor.dims[i] > 1 && tensor.strides[i] != inner {
            return false;
        }
        inner = inner.saturating_mul(i64::from(tensor.dims[i].max(1)));
    }
    true
}

/// Bytes from the first element to the end of the last. Decoding checked them against the payload.
fn extent(tensor: &Tensor) -> u64 {
    if tensor.shape().contains(&0) {
        return 0;
    }
    let steps =
        tensor.shape().iter().zip(&tensor.strides).map(|(dim, stride)| (i64::from(*dim) - 1) * stride);
    (steps.sum::<i64>() + item(tensor)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::tensor::TensorSpec;
    use proptest::prelude::*;

    fn tensor(order: i16, shape: &[usize], strides: &[i32], unit: u8, stride: u32) -> Tensor {
        let mut spec = TensorSpec::new(DTYPE_UINT16, order, shape).unwrap();
        (spec.progress_unit, spec.progress_stride_bytes) = (unit, stride);
        let mut bytes = [0; TENSOR_HEADER_ENCODED_LENGTH];
        spec.encode(&mut bytes);
        for (i, stride) in strides.iter().enumerate() {
            put_i32(&mut bytes, MESSAGE_HEADER_LENGTH + TENSOR_HEADER_STRIDES + 4 * i, *stride);
        }
        Tensor::decode(&bytes, u32::MAX).unwrap()
    }

    fn counts(tensor: &Tensor, filled: &[u64]) -> Vec<Option<i32>> {
        filled.iter().map(|f| filled_slices(tensor, *f).map(|w| w.count)).collect()
    }

    /// requirement: wire-10.2.2-3
    #[test]
    fn only_complete_rows_count() {
        let plain = tensor(MAJOR_ORDER_ROW, &[4, 6], &[], PROGRESS_UNIT_NONE, 0);
        assert_eq!(filled_slices(&plain, 25), Some(FilledSlices { axis: 0, count: 2 }));
        assert_eq!(counts(&plain, &[0, 11, 12, 47, 48, 1000]), [0, 0, 1, 3, 4, 4].map(Some));
        let columns = tensor(MAJOR_ORDER_COLUMN, &[4, 6], &[], PROGRESS_UNIT_COLUMNS, 8);
        assert_eq!(filled_slices(&columns, 17), Some(FilledSlices { axis: 1, count: 2 }));
    }

    /// requirement: wire-10.2.2-3
    #[test]
    fn padded_rows_need_a_progress_unit() {
        let unnamed = tensor(MAJOR_ORDER_ROW, &[4, 6], &[16, 2], PROGRESS_UNIT_NONE, 0);
        assert_eq!(filled_slices(&unnamed, 60), None);
        let named = tensor(MAJOR_ORDER_ROW, &[4, 6], &[16, 2], PROGRESS_UNIT_ROWS, 16);
        assert_eq!(counts(&named, &[15, 16, 59, 60]), [0, 1, 3, 4].map(Some));
        // Columns of rows one after another lie all over the payload: no prefix holds one.
        let crossed = tensor(MAJOR_ORDER_ROW, &[4, 6], &[16, 2], PROGRESS_UNIT_COLUMNS, 2);
        assert_eq!(filled_slices(&crossed, 60), None);
    }

    /// requirement: wire-8.2-13
    #[test]
    fn progress_unit_must_match_the_layout() {
        let spec = |order, shape: &[usize]| TensorSpec::new(DTYPE_UINT16, order, shape).unwrap();
        for (order, shape, unit) in [
            (MAJOR_ORDER_ROW, &[4usize, 6][..], ProgressUnit::Rows),
            (MAJOR_ORDER_ROW, &[4, 6, 3], ProgressUnit::Rows),
            (MAJOR_ORDER_ROW, &[9], ProgressUnit::Rows),
            (MAJOR_ORDER_ROW, &[4, 0], ProgressUnit::Rows),
            (MAJOR_ORDER_COLUMN, &[4, 6], ProgressUnit::Columns),
            (MAJOR_ORDER_COLUMN, &[1, 1], ProgressUnit::Columns),
        ] {
            let (spec_in_unit, stride) = spec(order, shape).with_progress_unit(unit).unwrap();
            assert_eq!(spec_in_unit.progress_stride_bytes, stride);
            let mut bytes = [0; TENSOR_HEADER_ENCODED_LENGTH];
            spec_in_unit.encode(&mut bytes);
            let read = Tensor::decode(&bytes, u32::MAX).unwrap();
            assert_eq!(unit_axis(&read), Some(outermost(order, read.ndims)));
        }
        assert_eq!(spec(MAJOR_ORDER_ROW, &[4, 6]).with_progress_unit(ProgressUnit::Columns), None);
        assert_eq!(spec(MAJOR_ORDER_COLUMN, &[4, 6]).with_progress_unit(ProgressUnit::Rows), None);
        assert_eq!(spec(MAJOR_ORDER_COLUMN, &[4, 6, 2]).with_progress_unit(ProgressUnit::Columns), None);
        let (plain, stride) = spec(MAJOR_ORDER_ROW, &[4, 6]).with_progress_unit(ProgressUnit::Bytes).unwrap();
        assert_eq!((plain.progress_unit, plain.progress_stride_bytes, stride), (PROGRESS_UNIT_NONE, 0, 12));
    }

    #[test]
    fn empty_tensor_is_filled_from_the_start() {
        let empty = tensor(MAJOR_ORDER_ROW, &[3, 0], &[], PROGRESS_UNIT_NONE, 0);
        assert_eq!(counts(&empty, &[0]), [Some(3)]);
    }

    proptest! {
        /// Every byte of a complete slice is inside the prefix.
        #[test]
        fn filled_slices_stay_within_the_prefix(
            shape in proptest::collection::vec(1usize..6, 1..4),
            column in any::<bool>(),
            filled in 0u64..600,
        ) {
            let order = if column { MAJOR_ORDER_COLUMN } else { MAJOR_ORDER_ROW };
            let tensor = tensor(order, &shape, &[], PROGRESS_UNIT_NONE, 0);
            let FilledSlices { axis, count } = filled_slices(&tensor, filled).unwrap();
            let mut part = tensor;
            part.dims[axis] = count;
            prop_assert!(extent(&part) <= filled);
            part.dims[axis] = count + 1;
            prop_assert!(count == tensor.dims[axis] || extent(&part) > filled);
        }
    }
}
