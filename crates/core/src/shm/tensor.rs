//! The tensor header of a slot (wire §8.2): element type, order, shape, strides, and their rules. Pure.

use crate::drop_reason::DropReason;
use crate::wire::layout::*;

/// Bytes of one element, or `None` for a type that is not in the registry (wire §15.8).
#[inline]
pub const fn item_size(dtype: i16) -> Option<u32> {
    match dtype {
        DTYPE_UINT8 | DTYPE_INT8 | DTYPE_BOOLEAN | DTYPE_BYTES | DTYPE_BIT => Some(1),
        DTYPE_UINT16 | DTYPE_INT16 => Some(2),
        DTYPE_UINT32 | DTYPE_INT32 | DTYPE_FLOAT32 => Some(4),
        DTYPE_UINT64 | DTYPE_INT64 | DTYPE_FLOAT64 => Some(8),
        _ => None,
    }
}

/// A producer's tensor. Strides are 0 ("inferred") where it is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    pub dtype: i16,
    pub major_order: i16,
    pub ndims: u8,
    pub dims: [i32; MAX_DIMS],
    pub strides: [i32; MAX_DIMS],
    pub progress_unit: u8,
    pub progress_stride_bytes: u32,
}

impl TensorSpec {
    /// `None` when the shape has 0 or more than 8 dimensions, or one that does not fit 31 bits.
    pub fn new(dtype: i16, major_order: i16, shape: &[usize]) -> Option<Self> {
        if shape.is_empty() || shape.len() > MAX_DIMS {
            return None;
        }
        let mut dims = [0; MAX_DIMS];
        for (dim, size) in dims.iter_mut().zip(shape) {
            *dim = i32::try_from(*size).ok()?;
        }
        let ndims = shape.len() as u8;
        Some(Self {
            dtype,
            major_order,
            ndims,
            dims,
            strides: [0; MAX_DIMS],
            progress_unit: PROGRESS_UNIT_NONE,
            progress_stride_bytes: 0,
        })
    }

    /// A tensor as it is stored in a payload of `len` bytes, padding between rows included. `None` if a
    /// reader would refuse it.
    pub fn from_parts(dtype: i16, major_order: i16, dims: &[i32], strides: &[i64], len: u32) -> Option<Self> {
        let mut shape = [0usize; MAX_DIMS];
        for (size, dim) in shape.iter_mut().zip(dims) {
            *size = usize::try_from(*dim).ok()?;
        }
        let contiguous = Self::new(dtype, major_order, shape.get(..dims.len())?)?;
        let mut declared = contiguous;
        for (stride, given) in declared.strides.iter_mut().zip(strides) {
            *stride = i32::try_from(*given).unwrap_or(-1);
        }
        let mut bytes = [0; TENSOR_HEADER_ENCODED_LENGTH];
        contiguous.encode(&mut bytes);
        let inferred = Tensor::decode(&bytes, len);
        let steps = |i: &usize| dims[*i] > 1;
        let is_same = |t: &Tensor| (0..dims.len()).filter(steps).all(|i| t.strides[i] == strides[i]);
        // Strides of an empty tensor have no meaning.
        if inferred.is_ok_and(|t| dims.contains(&0) || is_same(&t)) {
            return Some(contiguous);
        }
        declared.encode(&mut bytes);
        Tensor::decode(&bytes, len).is_ok().then_some(declared)
    }

    /// Bytes of the contiguous payload, or `None` beyond 64 bits.
    pub fn values_len(&self) -> Option<u64> {
        let mut bytes = u64::from(item_size(self.dtype)?);
        for dim in &self.dims[..usize::from(self.ndims)] {
            bytes = bytes.checked_mul(u64::try_from(*dim).ok()?)?;
        }
        Some(bytes)
    }

    /// This tensor with other byte strides, the bytes that it spans, and these bytes with the padding behind its
    /// last row. `None` if a reader would refuse it.
    pub fn with_strides(mut self, strides: &[i64]) -> Option<(Self, u64, u64)> {
        let n = usize::from(self.ndims);
        let item = item_size(self.dtype)?;
        if strides.len() != n {
            return None;
        }
        for (declared, stride) in self.strides.iter_mut().zip(strides) {
            *declared = i32::try_from(*stride).ok().filter(|s| *s > 0 && s % item as i32 == 0)?;
        }
        let (resolved, extent) = resolve(&self.dims[..n], &self.strides[..n], self.major_order, item).ok()?;
        let outermost = if self.major_order == MAJOR_ORDER_ROW { 0 } else { n - 1 };
        let padded = u64::try_from(resolved[outermost]).ok()?.checked_mul(self.dims[outermost] as u64)?;
        Some((self, extent, padded.max(extent)))
    }

    /// The byte strides in memory: the given ones, or those of a contiguous tensor. `None` for a tensor that
    /// a reader would refuse.
    pub fn resolved_strides(&self) -> Option<[i64; MAX_DIMS]> {
        let n = usize::from(self.ndims);
        let item = item_size(self.dtype)?;
        let (strides, _) = resolve(&self.dims[..n], &self.strides[..n], self.major_order, item).ok()?;
        Some(strides)
    }

    /// Writes message header and block: exactly the 192 bytes of `headerBytes`.
    #[inline]
    pub fn encode(&self, bytes: &mut [u8; TENSOR_HEADER_ENCODED_LENGTH]) {
        put_message_header(bytes, TENSOR_HEADER_BLOCK_LENGTH, TENSOR_HEADER_TEMPLATE_ID);
        let b = &mut bytes[MESSAGE_HEADER_LENGTH..];
        b.fill(0);
        put_i16(b, TENSOR_HEADER_DTYPE, self.dtype);
        put_i16(b, TENSOR_HEADER_MAJOR_ORDER, self.major_order);
        b[TENSOR_HEADER_NDIMS] = self.ndims;
        b[TENSOR_HEADER_PROGRESS_UNIT] = self.progress_unit;
        put_u32(b, TENSOR_HEADER_PROGRESS_STRIDE_BYTES, self.progress_stride_bytes);
        for (i, dim) in self.dims[..usize::from(self.ndims)].iter().enumerate() {
            put_i32(b, TENSOR_HEADER_DIMS + 4 * i, *dim);
            put_i32(b, TENSOR_HEADER_STRIDES + 4 * i, self.strides[i]);
        }
    }
}

/// A tensor header that passed every rule. Strides are resolved to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub dtype: i16,
    pub major_order: i16,
    pub ndims: u8,
    pub dims: [i32; MAX_DIMS],
    pub strides: [i64; MAX_DIMS],
    pub progress_unit: u8,
}

impl Tensor {
    /// Validates the 192 bytes of `headerBytes` against a payload of `values_len` bytes.
    pub fn decode(bytes: &[u8; TENSOR_HEADER_ENCODED_LENGTH], values_len: u32) -> Result<Self, DropReason> {
        if get_u16(bytes, MESSAGE_HEADER_SCHEMA_ID) != WIRE_SCHEMA_ID
            || get_u16(bytes, MESSAGE_HEADER_TEMPLATE_ID) != TENSOR_HEADER_TEMPLATE_ID
            || get_u16(bytes, MESSAGE_HEADER_VERSION) != WIRE_SCHEMA_VERSION
        {
            return Err(DropReason::HeaderMessage);
        }
        if get_u16(bytes, MESSAGE_HEADER_BLOCK_LENGTH) != TENSOR_HEADER_BLOCK_LENGTH {
            return Err(DropReason::HeaderLength);
        }
        let b = &bytes[MESSAGE_HEADER_LENGTH..];
        let dtype = get_i16(b, TENSOR_HEADER_DTYPE);
        let item = item_size(dtype).ok_or(DropReason::Dtype)?;
        let major_order = get_i16(b, TENSOR_HEADER_MAJOR_ORDER);
        if major_order != MAJOR_ORDER_ROW && major_order != MAJOR_ORDER_COLUMN {
            return Err(DropReason::MajorOrder);
        }
        let ndims = b[TENSOR_HEADER_NDIMS];
        let n = usize::from(ndims);
        if n == 0 || n > MAX_DIMS {
            return Err(DropReason::Ndims);
        }
        let mut dims = [0i32; MAX_DIMS];
        let mut declared = [0i32; MAX_DIMS];
        for i in 0..n {
            dims[i] = get_i32(b, TENSOR_HEADER_DIMS + 4 * i);
            declared[i] = get_i32(b, TENSOR_HEADER_STRIDES + 4 * i);
            if dims[i] < 0 {
                return Err(DropReason::Dims);
            }
        }
        let (strides, extent) = resolve(&dims[..n], &declared[..n], major_order, item)?;
        let progress_unit = b[TENSOR_HEADER_PROGRESS_UNIT];
        check_progress(progress_unit, get_u32(b, TENSOR_HEADER_PROGRESS_STRIDE_BYTES), &strides[..n])?;
        if extent > u64::from(values_len) {
            return Err(DropReason::Extent);
        }
        Ok(Self { dtype, major_order, ndims, dims, strides, progress_unit })
    }

    pub fn shape(&self) -> &[i32] {
        &self.dims[..usize::from(self.ndims)]
    }
}

/// Byte strides with the zeros inferred, and the bytes that the tensor spans.
///
/// From the innermost dimension outwards each stride must be at least as large as all that is inside it. That
/// means both "no overlap" and "agrees with the major order". The stride of a dimension of size 1 or 0 is not
/// used, so it is not checked, except that negative strides are always refused.
fn resolve(
    dims: &[i32],
    declared: &[i32],
    order: i16,
    item: u32,
) -> Result<([i64; MAX_DIMS], u64), DropReason> {
    let n = dims.len();
    let mut strides = [0i64; MAX_DIMS];
    let mut inner = i64::from(item);
    let mut last = 0i64;
    let mut empty = false;
    for step in 0..n {
        let i = if order == MAJOR_ORDER_ROW { n - 1 - step } else { step };
        let (dim, stride) = (i64::from(dims[i]), i64::from(declared[i]));
        if stride < 0 {
            return Err(DropReason::Strides);
        }
        let stride = if stride == 0 || dim <= 1 { inner } else { stride };
        if stride < inner {
            return Err(DropReason::Strides);
        }
        strides[i] = stride;
        empty |= dim == 0;
        if dim > 1 {
            last = (dim - 1).checked_mul(stride).and_then(|x| x.checked_add(last)).ok_or(DropReason::Dims)?;
        }
        inner = stride.checked_mul(dim.max(1)).ok_or(DropReason::Dims)?;
    }
    let extent = if empty { 0 } else { last.checked_add(i64::from(item)).ok_or(DropReason::Dims)? };
    Ok((strides, extent as u64))
}

/// Rows are dimension 0, columns dimension 1. The declared stride must be that of the dimension.
fn check_progress(unit: u8, stride: u32, strides: &[i64]) -> Result<(), DropReason> {
    let axis = match unit {
        PROGRESS_UNIT_NONE => return Ok(()),
        PROGRESS_UNIT_ROWS => 0,
        PROGRESS_UNIT_COLUMNS => 1.min(strides.len() - 1),
        _ => return Err(DropReason::Progress),
    };
    if stride == 0 || i64::from(stride) != strides[axis] { Err(DropReason::Progress) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const U16: [usize; 2] = [4, 6];

    fn header(spec: TensorSpec) -> [u8; TENSOR_HEADER_ENCODED_LENGTH] {
        let mut bytes = [0xFF; TENSOR_HEADER_ENCODED_LENGTH];
        spec.encode(&mut bytes);
        bytes
    }

    #[test]
    fn padded_rows_are_read_as_they_were_declared() {
        let spec = TensorSpec::new(DTYPE_UINT16, MAJOR_ORDER_ROW, &U16).unwrap();
        let (padded, extent, len) = spec.with_strides(&[64, 2]).unwrap();
        assert_eq!((extent, len), (3 * 64 + 12, 4 * 64));
        let read = Tensor::decode(&header(padded), extent as u32).unwrap();
        assert_eq!((&read.strides[..2], padded.resolved_strides().unwrap()), (&[64, 2][..], read.strides));
        assert_eq!(Tensor::decode(&header(padded), extent as u32 - 1), Err(DropReason::Extent));
        for refused in [&[10, 2][..], &[64, 3], &[63, 2], &[64], &[-64, 2], &[64, 0], &[2, 64]] {
            assert_eq!(spec.with_strides(refused), None, "{refused:?}");
        }
        let column = TensorSpec::new(DTYPE_UINT16, MAJOR_ORDER_COLUMN, &U16).unwrap();
        assert_eq!(column.with_strides(&[2, 32]).unwrap().1, 5 * 32 + 8);
    }

    fn good() -> [u8; TENSOR_HEADER_ENCODED_LENGTH] {
        header(TensorSpec::new(DTYPE_UINT16, MAJOR_ORDER_ROW, &U16).unwrap())
    }

    fn with(at: usize, value: &[u8]) -> Result<Tensor, DropReason> {
        let mut bytes = good();
        bytes[MESSAGE_HEADER_LENGTH + at..MESSAGE_HEADER_LENGTH + at + value.len()].copy_from_slice(value);
        Tensor::decode(&bytes, 48)
    }

    fn with_strides(order: i16, shape: &[usize], strides: &[i32], len: u32) -> Result<Tensor, DropReason> {
        let mut bytes = header(TensorSpec::new(DTYPE_UINT16, order, shape).unwrap());
        for (i, s) in strides.iter().enumerate() {
            put_i32(&mut bytes, MESSAGE_HEADER_LENGTH + TENSOR_HEADER_STRIDES + 4 * i, *s);
        }
        Tensor::decode(&bytes, len)
    }

    #[test]
    fn contiguous_strides_are_inferred_in_both_orders() {
        let row = Tensor::decode(&good(), 48).unwrap();
        assert_eq!(row.strides[..2], [12, 2]);
        let column = with_strides(MAJOR_ORDER_COLUMN, &U16, &[], 48).unwrap();
        assert_eq!(column.strides[..2], [2, 8]);
    }

    /// requirement: wire-8.2-11
    #[test]
    fn unused_dimensions_are_written_zero_and_ignored_when_read() {
        let bytes = good();
        let body = &bytes[MESSAGE_HEADER_LENGTH..];
        assert!(body[TENSOR_HEADER_DIMS + 8..TENSOR_HEADER_DIMS + 32].iter().all(|b| *b == 0));
        assert!(body[TENSOR_HEADER_STRIDES..TENSOR_HEADER_STRIDES + 32].iter().all(|b| *b == 0));
        assert!(with(TENSOR_HEADER_DIMS + 8, &[0xFF; 24]).is_ok());
        assert!(with(TENSOR_HEADER_STRIDES + 8, &[0xFF; 24]).is_ok());
    }

    /// requirement: wire-8.2-4, wire-8.2-15
    #[test]
    fn tensor_padding_is_ignored() {
        assert!(with(TENSOR_HEADER_PAD_ALIGN, &[9]).is_ok());
        assert!(with(TENSOR_HEADER_PAD, &[0xEE; 109]).is_ok());
    }

    /// requirement: wire-8.2-9
    #[test]
    fn one_to_eight_dimensions_are_accepted() {
        for n in [0, 9, 255] {
            assert_eq!(with(TENSOR_HEADER_NDIMS, &[n]), Err(DropReason::Ndims));
        }
        assert!(TensorSpec::new(DTYPE_UINT8, MAJOR_ORDER_ROW, &[]).is_none());
        assert!(TensorSpec::new(DTYPE_UINT8, MAJOR_ORDER_ROW, &[1; 9]).is_none());
        assert!(TensorSpec::new(DTYPE_UINT8, MAJOR_ORDER_ROW, &[1; 8]).is_some());
    }

    /// requirement: wire-15.8-1
    #[test]
    fn unknown_types_and_orders_are_refused() {
        for dtype in [0i16, 12, 15, -1, 255] {
            assert_eq!(with(TENSOR_HEADER_DTYPE, &dtype.to_le_bytes()), Err(DropReason::Dtype));
        }
        for order in [0i16, 3, -1] {
            assert_eq!(with(TENSOR_HEADER_MAJOR_ORDER, &order.to_le_bytes()), Err(DropReason::MajorOrder));
        }
        assert_eq!(with(TENSOR_HEADER_PROGRESS_UNIT, &[3]), Err(DropReason::Progress));
    }

    /// requirement: wire-15.8-2
    #[test]
    fn dtype_registry_has_the_specified_numbers() {
        let sizes: Vec<_> = (0..16).map(item_size).collect();
        let (b, w, d, q) = (Some(1), Some(2), Some(4), Some(8));
        let expected = [None, b, b, w, w, d, d, q, q, d, q, b, None, b, b, None];
        assert_eq!(sizes, expected);
        assert_eq!((MAJOR_ORDER_ROW, MAJOR_ORDER_COLUMN), (1, 2));
    }

    /// requirement: wire-8.2-12
    #[test]
    fn strides_that_overlap_or_contradict_the_order_are_refused() {
        assert!(with_strides(MAJOR_ORDER_ROW, &U16, &[16, 2], 62).is_ok());
        assert!(with_strides(MAJOR_ORDER_ROW, &U16, &[16, 0], 62).is_ok());
        for strides in [[10, 2], [2, 8], [12, -2], [-12, 2], [12, 1]] {
            assert_eq!(
                with_strides(MAJOR_ORDER_ROW, &U16, &strides, 99),
                Err(DropReason::Strides),
                "{strides:?}"
            );
        }
        assert!(with_strides(MAJOR_ORDER_COLUMN, &U16, &[2, 8], 48).is_ok());
        assert_eq!(with_strides(MAJOR_ORDER_COLUMN, &U16, &[12, 2], 99), Err(DropReason::Strides));
        assert!(with_strides(MAJOR_ORDER_ROW, &[1, 6], &[2, 2], 12).is_ok(), "a single row steps nowhere");
    }

    #[test]
    fn from_parts_keeps_the_layout_or_fails() {
        let from_parts = |order, dims: &[i32], strides: &[i64], len| {
            TensorSpec::from_parts(DTYPE_UINT16, order, dims, strides, len)
        };
        let contiguous = TensorSpec::new(DTYPE_UINT16, MAJOR_ORDER_ROW, &U16);
        assert_eq!(from_parts(MAJOR_ORDER_ROW, &[4, 6], &[12, 2], 48), contiguous, "needs no strides");
        let padded = from_parts(MAJOR_ORDER_ROW, &[4, 6], &[16, 2], 64).unwrap();
        assert_eq!(Tensor::decode(&header(padded), 64).unwrap().strides[..2], [16, 2]);
        let columns = from_parts(MAJOR_ORDER_COLUMN, &[4, 6], &[2, 8], 48).unwrap();
        assert_eq!((columns.major_order, columns.strides[..2].to_vec()), (MAJOR_ORDER_COLUMN, vec![0, 0]));
        assert!(from_parts(MAJOR_ORDER_ROW, &[1, 6], &[999, 2], 12).is_some(), "a single row steps nowhere");
        assert!(from_parts(MAJOR_ORDER_ROW, &[0, 6], &[0, 0], 0).is_some());
        for (dims, strides, len) in [
            (&[4, 6][..], &[12, 2][..], 47),
            (&[4, 6], &[2, 8], 99),
            (&[4, 6], &[-12, 2], 99),
            (&[4, 6], &[1 << 40, 2], 99),
            (&[-4, 6], &[12, 2], 99),
            (&[], &[], 99),
            (&[1; 9], &[2; 9], 99),
        ] {
            assert_eq!(from_parts(MAJOR_ORDER_ROW, dims, strides, len), None, "{dims:?} {strides:?} {len}");
        }
    }

    #[test]
    fn tensor_larger_than_its_payload_is_refused() {
        assert_eq!(Tensor::decode(&good(), 47), Err(DropReason::Extent));
        assert_eq!(with_strides(MAJOR_ORDER_ROW, &U16, &[16, 2], 59), Err(DropReason::Extent));
        assert!(with_strides(MAJOR_ORDER_ROW, &U16, &[16, 2], 60).is_ok());
        assert_eq!(with(TENSOR_HEADER_DIMS, &[0xFF; 4]), Err(DropReason::Dims));
        let huge = [i32::MAX.to_le_bytes(), i32::MAX.to_le_bytes()].concat();
        assert_eq!(with(TENSOR_HEADER_DIMS, &huge), Err(DropReason::Extent));
        let shape = [i32::MAX as usize; 8];
        assert_eq!(with_strides(MAJOR_ORDER_ROW, &shape, &[], 1), Err(DropReason::Dims));
        assert!(with(TENSOR_HEADER_DIMS, &[0; 4]).is_ok(), "an empty tensor needs no bytes");
    }

    /// requirement: wire-8.2-6, wire-8.2-13, wire-8.2-14
    #[test]
    fn progress_stride_must_match_the_strides() {
        let progress = |unit: u8, stride: u32| {
            let [a, b, c, d] = stride.to_le_bytes();
            with(TENSOR_HEADER_PROGRESS_UNIT, &[unit, a, b, c, d])
        };
        assert!(progress(PROGRESS_UNIT_ROWS, 12).is_ok());
        assert!(progress(PROGRESS_UNIT_COLUMNS, 2).is_ok());
        assert_eq!(progress(PROGRESS_UNIT_ROWS, 0), Err(DropReason::Progress));
        assert_eq!(progress(PROGRESS_UNIT_ROWS, 2), Err(DropReason::Progress));
        assert_eq!(progress(PROGRESS_UNIT_COLUMNS, 12), Err(DropReason::Progress));
        assert!(progress(PROGRESS_UNIT_NONE, 99).is_ok());
    }

    /// requirement: wire-8.3-1, wire-8.3-2, wire-15.18-1, wire-15.21-2
    #[test]
    fn embedded_message_must_be_a_tensor_header() {
        for (at, drop) in [
            (MESSAGE_HEADER_SCHEMA_ID, DropReason::HeaderMessage),
            (MESSAGE_HEADER_TEMPLATE_ID, DropReason::HeaderMessage),
            (MESSAGE_HEADER_VERSION, DropReason::HeaderMessage),
            (MESSAGE_HEADER_BLOCK_LENGTH, DropReason::HeaderLength),
        ] {
            let mut bytes = good();
            bytes[at] ^= 1;
            assert_eq!(Tensor::decode(&bytes, 48), Err(drop));
        }
    }
}
