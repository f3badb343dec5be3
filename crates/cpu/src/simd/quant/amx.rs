//! Tile registers of AMX, by inline assembly: the compiler has no stable intrinsics for them.
//!
//! Eight registers of 16 rows of 64 bytes. `tdpbusd` multiplies a tile of codes, `[row of weights][column]`, with a tile of
//! activations, `[column / 4][row of activations][column % 4]`, and adds the products, exact in 32 bits, to a tile
//! `[row of weights][row of activations]`. A [`ConfiguredTiles`] configures the registers of its thread and clears them at its end,
//! so that the system need not save them when it switches threads later.
//!
//! Its plain twin is `PlainUnit` in the tests of `tiles.rs`.
#![allow(unsafe_code, reason = "instructions by inline assembly")]

use super::tiles::{MEMORY, PRODUCTS, SIDE, Unit};
use std::arch::asm;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Bytes of a row of a full tile.
const ROW_BYTES: u16 = 64;

/// Returns `true` if the machine has tiles of bytes and the system lets this process use them. It is asked once.
pub(crate) fn is_usable() -> bool {
    static IS_USABLE: OnceLock<bool> = OnceLock::new();
    *IS_USABLE.get_or_init(|| is_x86_feature_detected!("xsave") && has_tiles() && is_permitted())
}

/// Asks the processor, and for the states that the system saves.
fn has_tiles() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    /// AMX-TILE and AMX-INT8, in EDX of leaf 7.
    const FEATURES: u32 = 1 << 24 | 1 << 25;
    /// Configuration and contents of tiles, in XCR0.
    const STATES: u64 = 1 << 17 | 1 << 18;
    #[target_feature(enable = "xsave")]
    fn states() -> u64 {
        // SAFETY: register 0 exists wherever the instruction does.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: `is_usable` has asked for XSAVE first.
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & FEATURES == FEATURES && unsafe { states() } & STATES == STATES
}

/// Asks the system for permission, which holds for all threads of the process, those that run already too.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    /// The number of `arch_prctl`.
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    /// The contents of tiles.
    const TILE_DATA: usize = 18;
    let result: isize;
    // SAFETY: the call takes two numbers and touches no memory of this process. As all calls it changes RAX, RCX and R11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// The tile registers of this thread, configured for groups of one size. It stays on its thread.
pub(crate) struct ConfiguredTiles {
    group: usize,
    is_signed: bool,
    on_this_thread: PhantomData<*const ()>,
}

impl ConfiguredTiles {
    /// Configures the registers for groups of 16, 32 or 64 codes; two of codes, two of activations and four of sums.
    ///
    /// # Safety
    ///
    /// [`is_usable`] has returned `true`, and the thread has no other value of this type.
    pub(crate) unsafe fn new(group: usize, is_signed: bool) -> Self {
        assert!(matches!(group, 16 | 32 | 64), "groups fit a tile");
        let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        let group_bytes = u16::try_from(group).unwrap_or(ROW_BYTES);
        let sizes = config.row_bytes.iter_mut().zip(&mut config.rows).take(8);
        for (number, (row_bytes, rows)) in sizes.enumerate() {
            (*row_bytes, *rows) = match number {
                0 | 1 => (group_bytes, 16),
                2 | 3 => (ROW_BYTES, (group_bytes / 4).to_le_bytes()[0]),
                _ => (ROW_BYTES, 16),
            };
        }
        // SAFETY: the configuration is a valid one, and 64 bytes long.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags, readonly)) };
        Self { group, is_signed, on_this_thread: PhantomData }
    }
}

impl Drop for ConfiguredTiles {
    fn drop(&mut self) {
        // SAFETY: a session exists, so the instruction does.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}

/// The products of two tiles of codes with two of activations, each loaded right before it is needed.
macro_rules! products {
    ($multiply:literal, $codes:expr, $other_codes:expr, $stride:expr, $high:expr, $low:expr, $to:expr) => {
        asm!(
            "tileloadd tmm0, [{codes} + {stride}*1]",
            "tileloadd tmm2, [{high} + {row}*1]",
            "tilezero tmm4",
            concat!($multiply, " tmm4, tmm0, tmm2"),
            "tileloadd tmm3, [{low} + {row}*1]",
            "tilezero tmm5",
            concat!($multiply, " tmm5, tmm0, tmm3"),
            "tileloadd tmm1, [{other_codes} + {stride}*1]",
            "tilezero tmm6",
            concat!($multiply, " tmm6, tmm1, tmm2"),
            "tilestored [{to} + {row}*1], tmm4",
            "tilezero tmm7",
            concat!($multiply, " tmm7, tmm1, tmm3"),
            "tilestored [{to} + {row}*1 + 1024], tmm5",
            "tilestored [{to} + {row}*1 + 2048], tmm6",
            "tilestored [{to} + {row}*1 + 3072], tmm7",
            codes = in(reg) $codes,
            other_codes = in(reg) $other_codes,
            stride = in(reg) $stride,
            high = in(reg) $high,
            low = in(reg) $low,
            to = in(reg) $to,
            row = in(reg) usize::from(ROW_BYTES),
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags)
        )
    };
}

impl Unit for ConfiguredTiles {
    #[inline(always)]
    fn products(&self, codes: &[u8], stride: usize, x: &[f32], groups: usize, to: &mut [f32; MEMORY]) {
        let (group, half) = (self.group, self.group / 4 * SIDE);
        assert!(codes.len() >= (2 * SIDE - 1) * stride + groups * group, "two tiles of codes for each group");
        assert!(x.len() >= 2 * groups * half, "two planes of activations for each group");
        assert!(to.len() >= groups * PRODUCTS, "four tiles of sums for each group");
        for number in 0..groups {
            let codes = codes.as_ptr().wrapping_add(number * group);
            let (high, to) =
                (x.as_ptr().wrapping_add(2 * number * half), to.as_mut_ptr().wrapping_add(number * PRODUCTS));
            let (other_codes, low) = (codes.wrapping_add(SIDE * stride), high.wrapping_add(half));
            // SAFETY: the registers are configured. Read are 16 rows of `group` bytes, `stride` apart, from each pointer to codes,
            // and `group / 4` rows of 64 bytes, one after another, from each to activations; written are four times 16 rows of 64
            // bytes: by the checks all lie in their slices.
            unsafe {
                if self.is_signed {
                    products!("tdpbssd", codes, other_codes, stride, high, low, to);
                } else {
                    products!("tdpbusd", codes, other_codes, stride, high, low, to);
                }
            }
        }
    }
}
