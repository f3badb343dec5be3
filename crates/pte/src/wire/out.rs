//! Writing: a table first, then its children after it, so that every distance points forward as the format wants.
//! The same values give the same bytes.

use std::collections::HashMap;

/// What one field of a table, or one element of a vector, is on the wire.
pub(crate) enum WireValue<'a> {
    Absent,
    /// The first `width` of the bytes.
    Scalar {
        bytes: [u8; 8],
        width: usize,
    },
    Child(&'a dyn Emit),
}

impl WireValue<'_> {
    /// A number of at most eight bytes.
    pub(crate) fn scalar<const N: usize>(raw: [u8; N]) -> Self {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(raw).for_each(|(to, from)| *to = from);
        WireValue::Scalar { bytes, width: N }
    }

    fn width(&self) -> usize {
        match self {
            WireValue::Absent => 0,
            WireValue::Scalar { width, .. } => *width,
            WireValue::Child(_) => 4,
        }
    }

    /// Returns `true` if both are scalars with the same bits.
    pub(crate) fn is_same_scalar(&self, other: &WireValue<'_>) -> bool {
        match (self, other) {
            (WireValue::Scalar { bytes: a, width: n }, WireValue::Scalar { bytes: b, width: m }) => (a, n) == (b, m),
            _ => false,
        }
    }
}

/// A value that lies outside the table that names it.
pub(crate) trait Emit {
    /// Appends the value and returns its offset.
    fn emit(&self, out: &mut Out) -> usize;
}

/// A buffer being written.
pub(crate) struct Out {
    bytes: Vec<u8>,
    vtables: HashMap<Vec<u8>, usize>,
}

impl Out {
    /// A whole buffer: `head` follows the root offset, then comes the root table.
    pub(crate) fn buffer(head: &[u8], root: &dyn Emit) -> Vec<u8> {
        let mut out = Out { bytes: vec![0; 4], vtables: HashMap::new() };
        out.bytes.extend_from_slice(head);
        let at = root.emit(&mut out);
        out.point(0, at);
        out.bytes
    }

    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    /// Aligns to four bytes; where eight-byte data follows after the next four bytes, so that this data is aligned.
    fn align_after_four(&mut self, is_wide: bool) -> usize {
        self.align(4);
        if is_wide && self.bytes.len().is_multiple_of(8) {
            self.bytes.extend_from_slice(&[0; 4]);
        }
        self.bytes.len()
    }

    fn put(&mut self, at: usize, raw: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(at).zip(raw) {
            *to = *from;
        }
    }

    /// Stores at `at` the distance from there to `target`.
    fn point(&mut self, at: usize, target: usize) {
        let distance = u32::try_from(target - at).expect("a table of contents is smaller than 4 GiB");
        self.put(at, &distance.to_le_bytes());
    }

    fn fill(&mut self, at: usize, value: &WireValue<'_>) {
        match value {
            WireValue::Absent => {}
            WireValue::Scalar { bytes, width } => self.put(at, bytes.get(..*width).unwrap_or(bytes)),
            WireValue::Child(child) => {
                let target = child.emit(self);
                self.point(at, target);
            }
        }
    }

    pub(crate) fn table(&mut self, fields: &[WireValue<'_>]) -> usize {
        // Widest first: then only the start of the table needs padding.
        let mut offsets = vec![0_usize; fields.len()];
        let mut len = 4;
        for width in [8, 4, 1] {
            for (offset, field) in offsets.iter_mut().zip(fields) {
                if field.width() == width {
                    *offset = len;
                    len += width;
                }
            }
        }
        let mut vtable = Vec::with_capacity(4 + 2 * fields.len());
        for number in [4 + 2 * fields.len(), len].iter().chain(&offsets) {
            let number = u16::try_from(*number).expect("a row has fewer than 8,000 fields");
            vtable.extend_from_slice(&number.to_le_bytes());
        }
        let at_vtable = self.vtable(vtable);
        let at = self.align_after_four(fields.iter().any(|field| field.width() == 8));
        self.bytes.resize(at + len, 0);
        let back = i32::try_from(at - at_vtable).expect("a table of contents is smaller than 2 GiB");
        self.put(at, &back.to_le_bytes());
        for (offset, field) in offsets.iter().zip(fields) {
            self.fill(at + offset, field);
        }
        at
    }

    fn vtable(&mut self, vtable: Vec<u8>) -> usize {
        if let Some(at) = self.vtables.get(&vtable) {
            return *at;
        }
        self.align(2);
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&vtable);
        self.vtables.insert(vtable, at);
        at
    }

    /// A vector of `stride`-byte elements.
    pub(crate) fn vector<'a>(&mut self, stride: usize, items: impl ExactSizeIterator<Item = WireValue<'a>>) -> usize {
        let at = self.align_after_four(stride == 8);
        let len = u32::try_from(items.len()).expect("a vector has fewer than 2^32 elements");
        self.bytes.extend_from_slice(&len.to_le_bytes());
        let start = self.bytes.len();
        self.bytes.resize(start + stride * items.len(), 0);
        for (index, item) in items.enumerate() {
            self.fill(start + stride * index, &item);
        }
        at
    }

    pub(crate) fn text(&mut self, text: &str) -> usize {
        let at = self.vector(1, text.bytes().map(|byte| WireValue::scalar([byte])));
        self.bytes.push(0);
        at
    }
}
