//! Tensors that go into a method and come out of it.

use crate::error::{Error, Result};
use ptero_pte::{DType, byte_count};

/// A tensor in memory, row-major, little-endian.
///
/// ```
/// use ptero::Tensor;
///
/// let tensor = Tensor::from_slice(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0])?;
/// assert_eq!(tensor.to_vec::<f32>(), Some(vec![1.0, 2.0, 3.0, 4.0]));
/// assert_eq!(tensor.to_vec::<i64>(), None, "another type");
/// # Ok::<(), ptero::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    /// Makes a tensor from the bytes of its elements.
    ///
    /// # Errors
    /// When the number of bytes is not that of the shape and type.
    pub fn new(dtype: DType, shape: &[u64], bytes: Vec<u8>) -> Result<Self> {
        let wanted = byte_count(shape, dtype).and_then(|bytes| usize::try_from(bytes).ok());
        if wanted != Some(bytes.len()) {
            return Err(Error::Tensor { dtype, shape: shape.to_vec(), bytes: bytes.len() });
        }
        Ok(Self { dtype, shape: shape.to_vec(), bytes })
    }

    /// Makes a tensor from its elements.
    ///
    /// # Errors
    /// When the number of elements is not that of the shape.
    pub fn from_slice<T: Element>(shape: &[u64], elements: &[T]) -> Result<Self> {
        Self::new(T::DTYPE, shape, elements.iter().flat_map(|element| element.to_bytes()).collect())
    }

    /// Returns the elements, or `None` if they have another type.
    pub fn to_vec<T: Element>(&self) -> Option<Vec<T>> {
        let elements = self.bytes.chunks_exact(size_of::<T>());
        (self.dtype == T::DTYPE).then(|| elements.filter_map(T::from_bytes).collect())
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the sizes.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns the bytes of the elements.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A Rust type that is the element of a tensor.
pub trait Element: Sized + private::Sealed {
    /// The element type.
    const DTYPE: DType;

    #[doc(hidden)]
    fn to_bytes(&self) -> Vec<u8>;

    #[doc(hidden)]
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

mod private {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($type:ty => $dtype:ident,)*) => {$(
        impl private::Sealed for $type {}

        impl Element for $type {
            const DTYPE: DType = DType::$dtype;

            fn to_bytes(&self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }

            fn from_bytes(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }
        }
    )*};
}

elements! {
    f32 => F32,
    i32 => I32,
    i64 => I64,
    u8 => U8,
}
