//! Writing: a table first, then its children behind it, so that every distance points forward as the format wants.
//! The same values give the same bytes.

use std::collections::HashMap;

/// What one field of a table, or one element of a vector, is on the wire.
pub(crate) enum Place<'a> {
    Absent,
    B1(u8),
    B4(u32),
    B8(u64),
    Child(&'a dyn Emit),
}

impl Place<'_> {
    fn bytes(&self) -> usize {
        match self {
            Place::Absent => 0,
            Place::B1(_) => 1,
            Place::B4(_) | Place::Child(_) => 4,
            Place::B8(_) => 8,
        }
    }

    /// Whether both are scalars, and the same to the bit.
    pub(crate) fn is_same_scalar(&self, other: &Place<'_>) -> bool {
        match (self, other) {
            (Place::B1(a), Place::B1(b)) => a == b,
            (Place::B4(a), Place::B4(b)) => a == b,
            (Place::B8(a), Place::B8(b)) => a == b,
            _ => false,
        }
    }
}

/// A value that lies outside the table that names it.
pub(crate) trait Emit {
    /// Appends the value and says where it starts.
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

    fn fill(&mut self, at: usize, place: &Place<'_>) {
        match place {
            Place::Absent => {}
            Place::B1(value) => self.put(at, &[*value]),
            Place::B4(value) => self.put(at, &value.to_le_bytes()),
            Place::B8(value) => self.put(at, &value.to_le_bytes()),
            Place::Child(child) => {
                let target = child.emit(self);
                self.point(at, target);
            }
        }
    }

    pub(crate) fn table(&mut self, fields: &[Place<'_>]) -> usize {
        // Widest first: then only the start of the table needs padding. After the distance to the vtable (4 bytes) the
        // eight-byte fields are aligned when the table starts 4 past a multiple of 8.
        let mut offsets = vec![0_usize; fields.len()];
        let mut len = 4;
        for width in [8, 4, 1] {
            for (offset, field) in offsets.iter_mut().zip(fields) {
                if field.bytes() == width {
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
        self.align(4);
        if fields.iter().any(|field| field.bytes() == 8) && self.bytes.len().is_multiple_of(8) {
            self.bytes.extend_from_slice(&[0; 4]);
        }
        let at = self.bytes.len();
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
    pub(crate) fn vector<'a>(&mut self, stride: usize, items: impl ExactSizeIterator<Item = Place<'a>>) -> usize {
        self.align(4);
        if stride == 8 && self.bytes.len().is_multiple_of(8) {
            self.bytes.extend_from_slice(&[0; 4]);
        }
        let at = self.bytes.len();
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
        let at = self.vector(1, text.bytes().map(Place::B1));
        self.bytes.push(0);
        at
    }
}
