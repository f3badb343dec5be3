//! Quantized weights: decoding them, and multiplying them with activations in integers.

/// Functions for machines with AVX-512 and VNNI; those that begin with `vbmi;` are for machines with permutations of bytes, too.
#[cfg(target_arch = "x86_64")]
macro_rules! vnni {
    (vbmi; $($functions:tt)*) => {
        vnni! { @ "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2" $($functions)* }
    };
    (@ $features:literal $(
        $(#[$attribute:meta])* $vis:vis fn $name:ident $([$($generic:tt)*])? ($($arg:tt)*) $(-> $ret:ty)? $body:block
    )*) => { $(
        $(#[$attribute])*
        #[inline]
        #[target_feature(enable = $features)]
        $vis fn $name $(<$($generic)*>)? ($($arg)*) $(-> $ret)? $body
    )* };
    ($($functions:tt)*) => {
        vnni! { @ "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,bmi2" $($functions)* }
    };
}

pub(crate) mod activation;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
pub(crate) mod codes;
pub(crate) mod decode;
pub(crate) mod factors;
pub(crate) mod flat;
pub(crate) mod integer;
#[cfg(target_arch = "aarch64")]
mod neon;
pub(crate) mod panel;
pub(crate) mod sixteen;
pub(crate) mod tiles;
pub(crate) mod unpack;
#[cfg(target_arch = "x86_64")]
mod vnni;
