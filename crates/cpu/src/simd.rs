//! Kernels on slices, compiled once per instruction set and chosen when they are called.
//!
//! A kernel is plain Rust that the compiler vectorises: the macro `kernel!` compiles its body for AVX-512, for AVX2 and for
//! the baseline of the target (on ARM, that is NEON). Sums run in a fixed number of lanes and multiply-adds are explicit, so
//! all versions give the same bits. Where the compiler cannot find the instructions that matter, a file here has the
//! intrinsics, beside the plain twin that its tests compare it with.

/// Bytes of a line of the cache.
pub(crate) const CACHE_LINE: usize = 64;

/// An instruction set that this machine has. There is no other way to get one than to ask the machine, so having one is
/// the proof that its instructions may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Isa(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX2, and sums of products of numbers of 16 bits.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX-512, and tiles of bytes.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// NEON, and products of four bytes at once.
    #[cfg(target_arch = "aarch64")]
    DotProducts,
}

/// `true` if the machine has all of these features.
#[cfg(target_arch = "x86_64")]
macro_rules! has {
    ($($feature:tt),*) => {
        true $(&& is_x86_feature_detected!($feature))*
    };
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    has!("avx2", "fma", "f16c", "bmi2", "popcnt")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2() && has!("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni")
}

impl Isa {
    /// The best instruction set.
    pub fn best() -> Self {
        Self::available().into_iter().next_back().unwrap_or(Self(Level::Baseline))
    }

    /// All instruction sets, the plainest first.
    pub fn available() -> Vec<Self> {
        let levels = [
            Some(Level::Baseline),
            #[cfg(target_arch = "x86_64")]
            has_avx2().then_some(Level::Avx2),
            #[cfg(target_arch = "x86_64")]
            (has_avx2() && has!("avxvnni")).then_some(Level::AvxVnni),
            #[cfg(target_arch = "x86_64")]
            has_avx512().then_some(Level::Avx512),
            #[cfg(target_arch = "x86_64")]
            (has_avx512() && quant::amx::is_usable()).then_some(Level::Amx),
            #[cfg(target_arch = "aarch64")]
            std::arch::is_aarch64_feature_detected!("dotprod").then_some(Level::DotProducts),
        ];
        levels.into_iter().flatten().map(Self).collect()
    }

    /// Its name, as measurements print it.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Baseline if cfg!(target_arch = "aarch64") => "neon",
            Level::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Level::Amx => "amx-int8",
            #[cfg(target_arch = "aarch64")]
            Level::DotProducts => "neon-dotprod",
        }
    }

    pub(crate) fn level(self) -> Level {
        self.0
    }

    /// Returns `true` if there are tiles of bytes, `quant::amx`.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_tiles(self) -> bool {
        self.0 == Level::Amx
    }

    /// The value for this level: of those for the baseline, AVX2 and AVX-512.
    #[allow(clippy::indexing_slicing, reason = "one of three")]
    pub(crate) fn pick<T: Copy>(self, values: [T; 3]) -> T {
        values[match self.0 {
            Level::Baseline => 0,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 | Level::AvxVnni => 1,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => 2,
            #[cfg(target_arch = "aarch64")]
            Level::DotProducts => 0,
        }]
    }
}

/// Evaluates the expression of a level: the baseline's, that of AVX2, or that of AVX-512. The last two may call functions that
/// need the instructions of their level; they must be safe otherwise.
macro_rules! by_level {
    ($isa:expr, $baseline:expr, $avx2:expr, $avx512:expr) => {
        match $isa.level() {
            $crate::simd::Level::Baseline => $baseline,
            #[cfg(target_arch = "aarch64")]
            $crate::simd::Level::DotProducts => $baseline,
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` of these levels exists only on a machine that has these instructions.
            $crate::simd::Level::Avx2 | $crate::simd::Level::AvxVnni => unsafe { $avx2 },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above; a machine of the last level has all instructions of the one before.
            $crate::simd::Level::Avx512 | $crate::simd::Level::Amx => unsafe { $avx512 },
        }
    };
}

/// Compiles a function of [`lanes::Lanes`], its first argument, for every instruction set; the compiled function takes the
/// [`Isa`] instead. Parameters of types and constants are in brackets; if they cannot be inferred, so are their names after
/// them.
macro_rules! lanes_kernel {
    ($(
        $(#[$attribute:meta])*
        $vis:vis fn $name:ident $([$($generic:tt)*] $([$($parameter:ident),*])?)?
            ($lanes:ident, $($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    )*) => { $(
        $(#[$attribute])*
        #[allow(unsafe_code, reason = "the call into a version for one instruction set")]
        #[allow(clippy::too_many_arguments, reason = "kernels take plain slices and numbers")]
        $vis fn $name $(<$($generic)*>)? (isa: $crate::simd::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn run<L: $crate::simd::lanes::Lanes $(, $($generic)*)?>($lanes: L, $($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi2")]
            fn avx2 $(<$($generic)*>)? ($($arg: $ty),*) $(-> $ret)? {
                run $($(::<_, $($parameter),*>)?)? ($crate::simd::lanes::x86::Avx2::new(), $($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2")]
            fn avx512 $(<$($generic)*>)? ($($arg: $ty),*) $(-> $ret)? {
                run $($(::<_, $($parameter),*>)?)? ($crate::simd::lanes::x86::Avx512::new(), $($arg),*)
            }

            by_level!(
                isa,
                run $($(::<_, $($parameter),*>)?)? ($crate::simd::lanes::Plain, $($arg),*),
                avx2 $($(::<$($parameter),*>)?)? ($($arg),*),
                avx512 $($(::<$($parameter),*>)?)? ($($arg),*)
            )
        }
    )* };
}

/// Defines the functions `avx2` and `avx512`, which call a function of [`lanes::Register`] and of constants, given for each,
/// with the registers of their instruction set.
macro_rules! register_versions {
    (fn $run:ident($($arg:ident : $ty:ty),*) $(-> $ret:ty)?, [$($avx2:literal),*], [$($avx512:literal),*]) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c,bmi2")]
        fn avx2($($arg: $ty),*) $(-> $ret)? {
            $run::<_, $($avx2),*>($crate::simd::lanes::x86::Avx2::new(), $($arg),*)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2")]
        fn avx512($($arg: $ty),*) $(-> $ret)? {
            $run::<_, $($avx512),*>($crate::simd::lanes::x86::Avx512::new(), $($arg),*)
        }
    };
}

/// Compiles a function for every instruction set; the compiled function takes the [`Isa`] first. Type parameters are in brackets.
macro_rules! kernel {
    ($(
        $(#[$attribute:meta])*
        $vis:vis fn $name:ident $([$($generic:tt)*])? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    )*) => {
        lanes_kernel! { $(
            $(#[$attribute])*
            #[inline]
            $vis fn $name $([$($generic)*])? (_lanes, $($arg: $ty),*) $(-> $ret)? $body
        )* }
    };
}

/// Asks the machine to fetch bytes that will be read soon.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(CACHE_LINE) {
        prefetch_at(line.as_ptr());
    }
}

/// Asks the machine to fetch a line of the cache that will be read soon. Any pointer will do.
#[inline(always)]
#[allow(unsafe_code, reason = "an instruction that all machines of the architecture have")]
pub(crate) fn prefetch_at<T>(line: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every machine of this architecture has SSE, and fetching ahead is a hint, whatever the address.
        unsafe { _mm_prefetch(line.cast(), _MM_HINT_T0) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Same as [`prefetch_at`], but not into the first level of the caches: fewer lines can be on their way there at a time than
/// memory delivers.
#[inline(always)]
#[allow(unsafe_code, reason = "an instruction that all machines of the architecture have")]
pub(crate) fn prefetch_far<T>(line: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: every machine of this architecture has SSE, and fetching ahead is a hint, whatever the address.
        unsafe { _mm_prefetch(line.cast(), _MM_HINT_T1) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// The size of a tile: the cells of a product that are held in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// Rows of the left operand.
    pub(crate) rows: usize,
    /// Rows of the right operand, which are columns of the product.
    pub(crate) columns: usize,
}

impl Tile {
    /// The number of cells.
    pub(crate) fn cells(self) -> usize {
        self.rows * self.columns
    }
}

pub(crate) mod attention;
pub(crate) mod delta;
mod lanes;
pub mod matmul;
pub mod numeric;
pub mod probe;
pub(crate) mod quant;
pub(crate) mod rows;
pub(crate) mod sample;
mod strands;
pub(crate) mod stream;
pub mod strip;
